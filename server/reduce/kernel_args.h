// Arguments of one call of a reduction kernel. Plain data: the only header, apart from the vector
// trait, that files with instruction-set flags may include.
// Comes from: reduce.cc, tile by tile. Goes to: the kernels. Thread safety: plain values; calls on
// disjoint elements may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::reduce {

// Lanes of the canonical sum of squares: lane j takes elements j, j + 64, ... of a tile.
inline constexpr size_t kNormLanes = 64;

// The contributions of all slots to `count` consecutive elements.
struct SumArgs {
  const void* const* grads;  // in: one array per slot; null is a slot without a gradient
  const uint8_t* present;    // in: one flag per slot, 0 is as a null array; null is all present
  size_t slots;              // at least 1
  size_t begin;              // first element, of every slot's array
  size_t count;              // elements; 0 is allowed
  float* sum;                // out: count x fp32
  bool sum_is_read;          // at once, by this thread: leave the sum of a tile in its caches
};

// Sum of squares and count of Inf and NaN elements of one tile.
struct TileNorm {
  float sumsq;
  uint64_t nonfinite;
};

using SumFn = void (*)(const SumArgs& args);
using SumTileFn = TileNorm (*)(const SumArgs& args);
using NormTileFn = TileNorm (*)(const void* x, size_t count);

// The kernels of one instruction set; indices are DType's value - 1 (fp32, bf16, fp16). Every table
// holds functions with the same bits, except NaN payloads.
struct KernelTable {
  SumFn sum[3];             // any run of elements
  SumTileFn sum_tile[3];    // a whole tile: the sum and its norm in one pass
  NormTileFn norm_tile[3];  // a whole tile: the norm alone
};

}  // namespace ballast::reduce
