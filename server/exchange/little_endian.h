// Numbers in the byte order of zip archives and pickles.
// Comes from: stored_zip, torch_pickle. Goes to: their bytes. Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <string>

namespace ballast::server {

// Appends the lowest `bytes` bytes of `value`, 1 to 8, the lowest first.
inline void AppendLittleEndian(uint64_t value, int bytes, std::string* to) {
  for (int i = 0; i < bytes; ++i) to->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace ballast::server
