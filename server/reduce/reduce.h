// Sums the slots' gradients of an extent in slot order, with the extent's norm and finite check.
// Comes from: server/extents, when an extent's registers are complete. Goes to: the log, the vote
// (sum of squares, non-finite count) and server/optim, which steps on the sum.
//
// The sum is fp32: a = fp32(g[0]); a = a + fp32(g[r]) for r = 1, 2, ...; a slot without a gradient
// for a tensor counts as a tensor of +0.0 (so -0.0 + absent = +0.0), as torch would with zeros.
// The norm is canonical: per tile 64 fp32 lanes with fma, folded in halves (see reduce_kernel.h),
// tile sums added in fp64 in tile order. It depends only on the values and tile_elements: not on
// threads, instruction set, arrival order, or how tensor runs cut a tile.
// Memory traffic per parameter: slots x gradient bytes + 4; gradient bytes alone for one slot.
// Thread safety: pure functions over the caller's memory; tiles of one extent may run in parallel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/tensor/dtype.h"
#include "server/reduce/kernel_args.h"
#include "server/simd/isa.h"

namespace ballast::reduce {

// The kernels of `isa`, which this CPU must have (simd::CpuHas; BALLAST_CHECK otherwise). Static
// storage.
const KernelTable& Kernels(simd::Isa isa);

// Elements of one tensor inside the extent and the slots that contributed to them.
struct ContributionRun {
  size_t begin;            // first element, from the extent's start
  size_t count;            // elements
  const uint8_t* present;  // one flag per slot; null is all slots
};

// One extent. All memory is the caller's, for the call.
struct ExtentContributions {
  DType dtype;                  // of every slot's gradient
  const void* const* grads;     // one array of `count` elements per slot, in slot order; a null
                                // array, or elements of an absent run, are not read
  size_t slots;                 // contributors, present or not; at least 1
  const ContributionRun* runs;  // ascending, without gaps, covering all `count` elements; or null:
                                // every slot with an array contributes everything
  size_t run_count;             // 0 when runs is null
  size_t count;                 // elements of the extent
  size_t tile_elements;         // a multiple of 64: the norm's block
  float* sum;                   // out: count x fp32, best 64-byte aligned; null when !NeedsSum
  bool sum_is_read = false;     // each tile's, right after it by the same thread
};

// Sum of squares and non-finite count of one extent's summed gradient.
struct TileNormSum {
  double sumsq = 0;
  uint64_t nonfinite = 0;
  // Adds the next tile; tiles must come in index order.
  void Add(const TileNorm& tile) {
    sumsq += static_cast<double>(tile.sumsq);
    nonfinite += tile.nonfinite;
  }
};

// False when the sum is the one slot's own array, element for element: then `sum` may be null, and
// optim steps on that array directly.
bool NeedsSum(const ExtentContributions& extent);

// Tiles of the extent; the last one may be short.
size_t TileCount(const ExtentContributions& extent);

// Writes the sum of tile `tile` (unless `sum` is null) and returns its norm. An overflow of the sum
// of squares gives Inf with nonfinite 0: such a round must be skipped too.
TileNorm ReduceTile(const KernelTable& kernels, const ExtentContributions& extent, size_t tile);

// Where a tile's norm stops being finite: the first element whose sum is NaN or Inf, and the slot
// from which on it is so. When all sums are finite and only their squares overflow: the largest
// element, the first of several, and the slot that contributed most to it.
struct NonfiniteElement {
  size_t element = 0;  // of the extent
  size_t slot = 0;     // index into ExtentContributions::grads
  float value = 0;     // that slot's contribution, widened
  float sum = 0;       // of all slots
};

// Finds it in a tile whose sum of squares is not finite; the slots' gradients must still be there.
// Costs one more pass over the tile.
NonfiniteElement FindNonfinite(const KernelTable& kernels, const ExtentContributions& extent,
                               size_t tile);

// All tiles in order, in this thread.
TileNormSum ReduceExtent(const KernelTable& kernels, const ExtentContributions& extent);

}  // namespace ballast::reduce
