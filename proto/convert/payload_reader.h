// Reads numbers out of a message in pieces, and takes the rest of it without a copy.
// Comes from: the frame codec. Goes to: the frame codec. Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/bytes/payload.h"

namespace ballast {

// Reads forward through the pieces of one message.
class PayloadReader {
 public:
  // `message` outlives the reader.
  explicit PayloadReader(const Payload& message) : message_(message), remaining_(message.bytes()) {
    SkipEmpty();
  }

  size_t remaining() const { return remaining_; }

  // The three read what their names say, numbers little-endian; false at the end of the message, or
  // for a varint of more than 64 bits.
  bool ReadByte(unsigned char* byte) {
    if (remaining_ == 0) return false;
    *byte = static_cast<unsigned char>(piece().data[offset_]);
    Advance(1);
    return true;
  }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    unsigned char byte = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (!ReadByte(&byte)) return false;
      // The tenth byte has room for one bit of the number only.
      if (shift == 63 && byte > 1) return false;
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  template <typename T>
  bool ReadFixed(T* value) {
    *value = 0;
    unsigned char byte = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      if (!ReadByte(&byte)) return false;
      *value |= static_cast<T>(byte) << (8 * i);
    }
    return true;
  }

  // False when fewer bytes are left.
  bool Skip(uint64_t bytes) {
    if (bytes > remaining_) return false;
    while (bytes > 0) {
      const size_t step = std::min<uint64_t>(bytes, piece().bytes - offset_);
      Advance(step);
      bytes -= step;
    }
    return true;
  }

  // All bytes not yet read, without copying them.
  Payload TakeRest() {
    Payload::Pieces pieces;
    pieces.reserve(message_.pieces().size() - index_);
    while (remaining_ > 0) {
      const size_t bytes = piece().bytes - offset_;
      pieces.push_back({piece().data + offset_, bytes});
      Advance(bytes);
    }
    return Payload(std::move(pieces), message_.owner());
  }

 private:
  const Payload::Piece& piece() const { return message_.pieces()[index_]; }

  void Advance(size_t bytes) {
    offset_ += bytes;
    remaining_ -= bytes;
    SkipEmpty();
  }

  void SkipEmpty() {
    while (index_ < message_.pieces().size() && offset_ == piece().bytes) {
      ++index_;
      offset_ = 0;
    }
  }

  const Payload& message_;
  size_t index_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
};

}  // namespace ballast
