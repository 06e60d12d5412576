// The yardstick's loops, written once over a trait V of integer vectors. All loads of a block come
// before its stores, as in the kernel: a load that follows a store to the same offset of another
// array waits for it.
// Comes from: nothing. Goes to: the kernel_roofline_{sse2,avx2,avx512}.cc files, and no other.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/kernel/kernel_roofline.h"

namespace ballast::bench {
namespace {

// Of the kArrays read, the first kStored are written.
template <class V, size_t kArrays, size_t kStored>
void Roofline(float* const* arrays, const uint16_t* grad, uint16_t* weight, size_t count) {
  float* state[kArrays];
  for (size_t a = 0; a < kArrays; ++a) state[a] = arrays[a];
  const auto low_bits = V::Set(7);
  for (size_t i = 0; i < count; i += 2 * V::kLanes) {
    const auto flip = V::And(V::Load(grad + i), low_bits);
    typename V::I low[kArrays], high[kArrays];
    for (size_t a = 0; a < kArrays; ++a) low[a] = V::Xor(V::Load(state[a] + i), flip);
    for (size_t a = 0; a < kArrays; ++a) high[a] = V::Xor(V::Load(state[a] + i + V::kLanes), flip);
    // Unwritten arrays must be read all the same.
    for (size_t a = 0; a < kArrays; ++a) V::Keep(&low[a], &high[a]);
    for (size_t a = 0; a < kStored; ++a) V::Store(state[a] + i, low[a]);
    for (size_t a = 0; a < kStored; ++a) V::Store(state[a] + i + V::kLanes, high[a]);
    if constexpr (kStored > 0) V::StreamUpperHalves(weight + i, low[0], high[0]);
  }
  V::Fence();
}

template <class V>
constexpr Yardsticks MakeYardsticks(ScaleFn scale) {
  return {{Roofline<V, 1, 1>, Roofline<V, 2, 2>, Roofline<V, 3, 3>, Roofline<V, 4, 4>},
          Roofline<V, 3, 0>,
          scale};
}

}  // namespace
}  // namespace ballast::bench
