// The kernel bench's yardstick: the loads, stores and tile layout of the fused AdamW step on bf16
// gradients and weights, without its arithmetic. Plain data: files with instruction-set flags
// include only this and the intrinsics.
// Comes from: kernel_bench.cc. Goes to: the caller's memory. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::bench {

// Reads p, m, v and grad, flips the lowest three mantissa bits of p, m and v by the gradient's (so
// that the data stay as random as they were: constant data are up to 19 % faster), writes p, m, v
// in place and the upper halves of p past the cache to weight. count is a multiple of 32, weight is
// 64-byte aligned. 28 bytes per element.
using RooflineFn = void (*)(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                            size_t count);
void RooflineSse2(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                  size_t count);
void RooflineAvx2(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                  size_t count);
void RooflineAvx512(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                    size_t count);

// x[i] *= factor: torch's mul_ over an fp32 gradient, in the four-pass flow. 8 bytes per element.
using ScaleFn = void (*)(float* x, float factor, size_t count);
void ScaleSse2(float* x, float factor, size_t count);
void ScaleAvx2(float* x, float factor, size_t count);
void ScaleAvx512(float* x, float factor, size_t count);

}  // namespace ballast::bench
