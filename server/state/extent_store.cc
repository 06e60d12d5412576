#include "server/state/extent_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "server/optim/dispatch.h"

namespace ballast::server {
namespace {

// Puts 16 bits at a time into the high or low half of fp32 values. Memory traffic: 2 + 4 bytes read
// and 4 written per element.
void SetHalves(const uint16_t* __restrict from, size_t count, bool low, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, to + i, sizeof(bits));
    bits = low ? (bits & 0xFFFF0000u) | from[i] : (bits & 0xFFFFu) | uint32_t{from[i]} << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

// Bits of a state array, as they are: no value is looked at.
void SetPlane(UploadPlane plane, DType dtype, const void* from, const TileView& tile) {
  float* const to = tile.array[ArrayOf(plane)];
  if (dtype == DType::kF32) {
    std::memcpy(to, from, size_t{tile.elements} * sizeof(float));
  } else {
    SetHalves(static_cast<const uint16_t*>(from), tile.elements, IsLowPlane(plane), to);
  }
}

// The first run of `extent` that reaches beyond `element` of it; runs are ascending and gapless.
std::vector<Run>::const_iterator FirstRun(const Layout& layout, const Extent& extent,
                                          uint32_t element) {
  const auto first = layout.runs().begin() + extent.first_run;
  return std::upper_bound(first, first + extent.run_count, element,
                          [](uint32_t at, const Run& r) { return at < r.extent_offset; }) -
         1;
}

// Arguments of a kernel for `count` elements from element `at` of the tile on.
optim::RunArgs RunOf(const TileView& tile, uint32_t at, const void* grad, void* weight,
                     uint32_t count, float scale, const optim::Scalars& scalars) {
  optim::RunArgs run{
      .state = {}, .grad = grad, .weight = weight, .count = count, .scale = scale, .k = {}};
  for (uint32_t a = 0; a < tile.arrays; ++a) run.state[a] = tile.array[a] + at;
  std::memcpy(run.k, scalars.value, scalars.count * sizeof(float));
  return run;
}

}  // namespace

uint32_t TileCount(const Layout& layout, uint32_t extent) {
  const uint32_t elements = layout.extents()[extent].elements;
  return (elements + layout.tile_elements() - 1) / layout.tile_elements();
}

ExtentStore::ExtentStore(std::unique_ptr<Tier> tier, const optim::KernelTable* kernels)
    : own_(std::move(tier)), tier_(own_.get()), kernels_(kernels) {}

ExtentStore::ExtentStore(Tier* tier, const optim::KernelTable* kernels)
    : tier_(tier), kernels_(kernels) {}

absl::Status ExtentStore::Add(const Layout& layout, const std::vector<uint32_t>& extents) {
  for (const uint32_t extent : extents) {
    BALLAST_RETURN_IF_ERROR(tier_->AddExtent(extent, layout.extents()[extent].elements));
  }
  return absl::OkStatus();
}

void ExtentStore::WriteMaster(const Layout& layout, uint32_t extent, uint32_t offset,
                              const void* src, uint32_t count) {
  const DType dtype = layout.extents()[extent].dtype;
  const optim::UpcastFn upcast = optim::Upcast(*kernels_, dtype);
  const char* from = static_cast<const char*>(src);
  while (count > 0) {
    const TileView tile = tier_->Tile(extent, offset / layout.tile_elements());
    const uint32_t at = offset % layout.tile_elements();
    const uint32_t take = std::min(count, tile.elements - at);
    upcast(from, tile.master() + at, take);
    from += size_t{take} * DTypeBytes(dtype);
    offset += take;
    count -= take;
  }
}

uint64_t ExtentStore::UploadTile(const TileView& tile, const char* from, DType weight_dtype,
                                 char* weight, const ExtentStep& step) const {
  if (IsStatePlane(step.upload)) {
    SetPlane(step.upload, step.grad_dtype, from, tile);
  } else {
    optim::Upcast(*kernels_, step.grad_dtype)(from, tile.master(), tile.elements);
  }
  return optim::Downcast(*kernels_, weight_dtype)(tile.master(), weight, tile.elements);
}

uint64_t ExtentStore::StepTile(const Layout& layout, uint32_t extent_id, uint32_t tile_index,
                               const ExtentStep& step) {
  const Extent& extent = layout.extents()[extent_id];
  const size_t grad_bytes = DTypeBytes(step.grad_dtype);
  const size_t weight_bytes = DTypeBytes(extent.dtype);
  const TileView tile = tier_->Tile(extent_id, tile_index);
  const uint32_t begin = tile_index * layout.tile_elements();
  const uint32_t end = begin + tile.elements;
  if (IsUpload(step.upload)) {
    return UploadTile(tile, static_cast<const char*>(step.grad) + begin * grad_bytes, extent.dtype,
                      static_cast<char*>(step.weight) + begin * weight_bytes, step);
  }

  const optim::RunFn kernel =
      optim::KindStep(*kernels_, step.optimizer, tile.arrays, step.grad_dtype, extent.dtype);
  const auto last = layout.runs().begin() + extent.first_run + extent.run_count;
  auto run = FirstRun(layout, extent, begin);
  uint64_t overflows = 0;
  for (; run != last && run->extent_offset < end; ++run) {
    const uint32_t from = std::max(begin, run->extent_offset);
    const uint32_t to = std::min(end, run->extent_offset + run->elements);
    const uint32_t at = from - begin;
    char* weight = static_cast<char*>(step.weight) + from * weight_bytes;
    const optim::Scalars* scalars = (*step.scalars)[run->tensor];
    if (scalars == nullptr) {
      optim::Downcast(*kernels_, extent.dtype)(tile.master() + at, weight, to - from);
      continue;
    }
    overflows += kernel(RunOf(tile, at, static_cast<const char*>(step.grad) + from * grad_bytes,
                              weight, to - from, step.scale, *scalars));
  }
  return overflows;
}

void ExtentStore::SquareTile(const Layout& layout, uint32_t extent_id, uint32_t tile_index,
                             const ExtentStep& step, ExtentSquares* squares) const {
  const Extent& extent = layout.extents()[extent_id];
  const size_t grad_bytes = DTypeBytes(step.grad_dtype);
  const TileView tile = tier_->Tile(extent_id, tile_index);
  const uint32_t begin = tile_index * layout.tile_elements();
  const uint32_t end = begin + tile.elements;
  const optim::LambSquaresFn kernel = optim::LambSquares(*kernels_, step.grad_dtype);
  const auto first = layout.runs().begin() + extent.first_run;
  for (auto run = FirstRun(layout, extent, begin);
       run != first + extent.run_count && run->extent_offset < end; ++run) {
    const optim::Scalars* const scalars = (*step.scalars)[run->tensor];
    if (scalars == nullptr) continue;
    const uint32_t from = std::max(begin, run->extent_offset);
    const uint32_t to = std::min(end, run->extent_offset + run->elements);
    const void* const grad = static_cast<const char*>(step.grad) + from * grad_bytes;
    *squares->At(tile_index, static_cast<uint32_t>(run - first)) =
        kernel(RunOf(tile, from - begin, grad, nullptr, to - from, step.scale, *scalars));
  }
}

void ExtentStore::ReadWeights(const Layout& layout, uint32_t extent, void* dst) {
  const DType dtype = layout.extents()[extent].dtype;
  const optim::DowncastFn downcast = optim::Downcast(*kernels_, dtype);
  char* to = static_cast<char*>(dst);
  for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
    const TileView tile = tier_->Tile(extent, t);
    downcast(tile.master(), to, tile.elements);
    to += size_t{tile.elements} * DTypeBytes(dtype);
  }
}

}  // namespace ballast::server
