// Cuts an extent into tiles and tiles into runs with equal contributors. See reduce.h.
// Thread safety: pure functions over the caller's memory.
#include "server/reduce/reduce.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace ballast::reduce {

extern const KernelTable kScalarKernels;  // reduce_scalar.cc
extern const KernelTable kAvx2Kernels;    // reduce_avx2.cc
extern const KernelTable kAvx512Kernels;  // reduce_avx512.cc

namespace {

size_t Index(DType dtype) {
  BALLAST_CHECK(DTypeBytes(dtype) != 0);
  return static_cast<size_t>(dtype) - 1;
}

bool SamePresence(const uint8_t* a, const uint8_t* b, size_t slots) {
  if (a == b) return true;
  for (size_t slot = 0; slot < slots; ++slot) {
    if ((a == nullptr || a[slot] != 0) != (b == nullptr || b[slot] != 0)) return false;
  }
  return true;
}

// The runs that overlap [begin, end): a half-open range of run pointers.
struct RunRange {
  const ContributionRun* first;
  const ContributionRun* last;
};

RunRange RunsOf(const ExtentContributions& extent, size_t begin, size_t end) {
  const ContributionRun* runs_end = extent.runs + extent.run_count;
  const auto* after = std::upper_bound(
      extent.runs, runs_end, begin,
      [](size_t element, const ContributionRun& run) { return element < run.begin; });
  BALLAST_CHECK(after != extent.runs);
  const auto* last = after;
  while (last != runs_end && last->begin < end) ++last;
  return {after - 1, last};
}

bool Uniform(const RunRange& runs, size_t slots) {
  for (const ContributionRun* run = runs.first + 1; run < runs.last; ++run) {
    if (!SamePresence(runs.first->present, run->present, slots)) return false;
  }
  return true;
}

// fp32 sum, in slot order, of the values of slots [first, last) for one element.
float SumOfSlots(const KernelTable& kernels, const ExtentContributions& extent, size_t element,
                 size_t first, size_t last) {
  const uint8_t* present = nullptr;
  if (extent.run_count != 0) present = RunsOf(extent, element, element + 1).first->present;
  float sum = 0;
  kernels.sum[Index(extent.dtype)]({extent.grads + first,
                                    present == nullptr ? nullptr : present + first, last - first,
                                    element, 1, &sum, false});
  return sum;
}

}  // namespace

const KernelTable& Kernels(simd::Isa isa) {
  BALLAST_CHECK(simd::CpuHas(isa));
  switch (isa) {
    case simd::Isa::kScalar:
      break;
    case simd::Isa::kAvx2:
      return kAvx2Kernels;
    case simd::Isa::kAvx512:
      return kAvx512Kernels;
  }
  return kScalarKernels;
}

bool NeedsSum(const ExtentContributions& extent) {
  if (extent.slots != 1 || extent.grads[0] == nullptr) return true;
  for (size_t i = 0; i < extent.run_count; ++i) {
    const uint8_t* present = extent.runs[i].present;
    if (present != nullptr && present[0] == 0) return true;
  }
  return false;
}

size_t TileCount(const ExtentContributions& extent) {
  return (extent.count + extent.tile_elements - 1) / extent.tile_elements;
}

TileNorm ReduceTile(const KernelTable& kernels, const ExtentContributions& extent, size_t tile) {
  BALLAST_CHECK(extent.tile_elements % kNormLanes == 0 && tile < TileCount(extent));
  const size_t dtype = Index(extent.dtype);
  const size_t begin = tile * extent.tile_elements;
  const size_t end = std::min(begin + extent.tile_elements, extent.count);
  if (extent.sum == nullptr) {
    BALLAST_CHECK(!NeedsSum(extent));
    const char* grad = static_cast<const char*>(extent.grads[0]);
    return kernels.norm_tile[dtype](grad + begin * DTypeBytes(extent.dtype), end - begin);
  }
  SumArgs args = {extent.grads,       nullptr,           extent.slots, begin, end - begin,
                  extent.sum + begin, extent.sum_is_read};
  if (extent.run_count == 0) return kernels.sum_tile[dtype](args);
  const RunRange runs = RunsOf(extent, begin, end);
  if (Uniform(runs, extent.slots)) {
    args.present = runs.first->present;
    return kernels.sum_tile[dtype](args);
  }
  for (const ContributionRun* run = runs.first; run != runs.last; ++run) {
    args.begin = std::max(run->begin, begin);
    args.count = std::min(run->begin + run->count, end) - args.begin;
    args.sum = extent.sum + args.begin;
    args.present = run->present;
    kernels.sum[dtype](args);
  }
  return kernels.norm_tile[Index(DType::kF32)](extent.sum + begin, end - begin);
}

NonfiniteElement FindNonfinite(const KernelTable& kernels, const ExtentContributions& extent,
                               size_t tile) {
  const size_t begin = tile * extent.tile_elements;
  const size_t end = std::min(begin + extent.tile_elements, extent.count);
  NonfiniteElement found;
  for (size_t i = begin; i < end && std::isfinite(found.sum); ++i) {
    const float sum = SumOfSlots(kernels, extent, i, 0, extent.slots);
    if (i != begin && std::fabs(sum) <= std::fabs(found.sum)) continue;
    found.element = i;
    found.sum = sum;
  }
  for (size_t slot = 0; slot < extent.slots; ++slot) {
    const float value = SumOfSlots(kernels, extent, found.element, slot, slot + 1);
    const bool turns = !std::isfinite(SumOfSlots(kernels, extent, found.element, 0, slot + 1));
    if (!turns && std::fabs(value) <= std::fabs(found.value)) continue;
    found.slot = slot;
    found.value = value;
    if (turns) break;
  }
  return found;
}

TileNormSum ReduceExtent(const KernelTable& kernels, const ExtentContributions& extent) {
  TileNormSum norm;
  const size_t tiles = TileCount(extent);
  for (size_t tile = 0; tile < tiles; ++tile) norm.Add(ReduceTile(kernels, extent, tile));
  return norm;
}

}  // namespace ballast::reduce
