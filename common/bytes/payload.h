// A received byte string in pieces, as transports deliver it, without copying it together.
// Comes from: the frame codec (gRPC slices), tests. Goes to: server/extents, client pull.
// Thread safety: const methods may be called from any thread; the bytes are immutable. The owner
// is released on whichever thread drops the last copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bytes/crc32c.h"

namespace ballast {

// Movable and cheap to copy: copies share the bytes.
class Payload {
 public:
  struct Piece {
    const char* data;
    size_t bytes;
  };
  using Pieces = std::vector<Piece>;

  // The empty byte string.
  Payload() = default;

  // The concatenation of `pieces`, whose memory stays valid as long as `owner` is held.
  Payload(Pieces pieces, std::shared_ptr<const void> owner)
      : pieces_(std::move(pieces)), owner_(std::move(owner)) {
    for (const Piece& piece : pieces_) bytes_ += piece.bytes;
  }

  // A payload that owns `text`.
  static Payload FromString(std::string text) {
    auto owner = std::make_shared<const std::string>(std::move(text));
    Pieces pieces;
    if (!owner->empty()) pieces.push_back(Piece{owner->data(), owner->size()});
    return Payload(std::move(pieces), std::move(owner));
  }

  size_t bytes() const { return bytes_; }
  const Pieces& pieces() const { return pieces_; }
  // Keeps the memory of the pieces alive. A payload of some of these bytes shares it.
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // Writes all bytes() bytes to `dst`, which must not overlap the pieces.
  void CopyTo(void* dst) const {
    char* out = static_cast<char*>(dst);
    for (const Piece& piece : pieces_) {
      if (piece.bytes == 0) continue;
      std::memcpy(out, piece.data, piece.bytes);
      out += piece.bytes;
    }
  }

  // CRC32C of the bytes, continuing from `seed` as ballast::Crc32c does.
  uint32_t Crc32c(uint32_t seed = 0) const {
    for (const Piece& piece : pieces_) seed = ::ballast::Crc32c(piece.data, piece.bytes, seed);
    return seed;
  }

  // A copy of the bytes as one string; for control-sized payloads and tests.
  std::string ToString() const {
    std::string text(bytes_, '\0');
    CopyTo(text.data());
    return text;
  }

 private:
  Pieces pieces_;
  size_t bytes_ = 0;
  std::shared_ptr<const void> owner_;
};

}  // namespace ballast
