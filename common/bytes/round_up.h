// Sizes in whole units.
// Comes from: allocators of memory or of places in files. Goes to: the same. Thread safety: pure.
#pragma once

#include <cstdint>

namespace ballast {

// The smallest multiple of `unit`, which is not 0, that is at least `bytes`.
constexpr uint64_t RoundUp(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace ballast
