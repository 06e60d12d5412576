// Varints of Protocol Buffers, for messages written without generated code.
// Comes from: ReasonedError, the frame codec. Goes to: bytes of a message. Thread safety: pure.
#pragma once

#include <cstdint>
#include <string>

namespace ballast {

// Appends `value` in groups of 7 bits, lowest first; each byte but the last has its top bit set.
inline void AppendVarint(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

}  // namespace ballast
