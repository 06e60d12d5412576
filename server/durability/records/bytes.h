// Little-endian numbers in byte strings, and sizes in pages, for the formats of server/durability.
// Comes from: records, log_format, image_format. Goes to: nothing. Thread safety: plain values.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "common/io/file.h"

namespace ballast::server {

static_assert(std::endian::native == std::endian::little,
              "formats are written as they lie in memory");

// `bytes` rounded up to whole pages.
constexpr uint64_t PaddedBytes(uint64_t bytes) {
  return bytes / kPageBytes * kPageBytes + (bytes % kPageBytes == 0 ? 0 : kPageBytes);
}

// Puts and gets one number at a fixed place.
template <typename T>
void StoreNumber(T value, char* to) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  std::memcpy(to, &value, sizeof(T));
}
template <typename T>
T LoadNumber(const char* from) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Appends numbers to a string.
class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    StoreNumber(value, bytes_.data() + at);
  }
  void PutBytes(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Takes numbers off the front of a byte string. Reading past the end gives zeros and sets a lasting
// failure, so that callers check once, at their end.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    if (bytes_.size() < sizeof(T)) {
      Fail();
      return T{};
    }
    const T value = LoadNumber<T>(bytes_.data());
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  // A count of items of at least `item_bytes` bytes each; fails when the bytes left cannot hold
  // that many, so that nothing is allocated for a false count.
  uint32_t GetCount(size_t item_bytes) {
    const uint32_t count = Get<uint32_t>();
    if (count > bytes_.size() / item_bytes) {
      Fail();
      return 0;
    }
    return count;
  }
  // `count` bytes, as GetCount(1) gave it.
  std::string GetBytes(uint32_t count) {
    std::string bytes(bytes_.substr(0, count));
    bytes_.remove_prefix(bytes.size());
    return bytes;
  }
  void Fail() {
    ok_ = false;
    bytes_ = {};
  }
  // Whether all reads succeeded and no bytes are left over.
  bool AtEnd() const { return ok_ && bytes_.empty(); }

 private:
  absl::string_view bytes_;
  bool ok_ = true;
};

}  // namespace ballast::server
