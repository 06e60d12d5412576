// The kernel bench's yardstick: the loads, stores and tile layout of an optimizer kernel on bf16
// gradients and weights, without its arithmetic. Plain data: files with instruction-set flags
// include only this, kernel_roofline_loop.h and the intrinsics.
// Comes from: kernel_bench.cc. Goes to: the caller's memory. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::bench {

// Reads the arrays and grad, flips the lowest three mantissa bits of the arrays by the gradient's
// (so that the data stay as random as they were: constant data are up to 19 % faster), writes the
// arrays in place and the upper halves of the first past the cache to weight. count is a multiple
// of 32, weight is 64-byte aligned.
using RooflineFn = void (*)(float* const* state, const uint16_t* grad, uint16_t* weight,
                            size_t count);

// x[i] *= factor: torch's mul_ over an fp32 gradient, in the four-pass flow. 8 bytes per element.
using ScaleFn = void (*)(float* x, float factor, size_t count);

struct Yardsticks {
  RooflineFn step[4];       // 1 to 4 arrays, all written
  RooflineFn first_of_two;  // 3 arrays and the gradient, nothing written; the second is a step
  ScaleFn scale;
};

extern const Yardsticks kSse2Yardsticks;
extern const Yardsticks kAvx2Yardsticks;
extern const Yardsticks kAvx512Yardsticks;

}  // namespace ballast::bench
