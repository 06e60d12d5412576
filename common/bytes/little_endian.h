// Numbers in stored bytes, least significant byte first on every machine.
// Comes from: records of server/meta and server/jobs; zip archives and pickles of
// server/exchange. Goes to: their bytes. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast {

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

// The number at `offset`, which must have sizeof(T) bytes in `bytes`.
template <typename T>
T ReadLittleEndian(absl::string_view bytes, size_t offset) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<unsigned char>(bytes[offset + i]))
                                       << (8 * i));
  }
  return value;
}

}  // namespace ballast
