#include "server/state/extent_squares.h"

#include "server/state/extent_store.h"

namespace ballast::server {

ExtentSquares::ExtentSquares(const Layout& layout, uint32_t extent)
    : layout_(&layout),
      extent_(extent),
      tiles_(TileCount(layout, extent) + layout.extents()[extent].run_count) {}

optim::TensorSquares ExtentSquares::Sum(uint32_t run) const {
  const Run& part = layout_->runs()[layout_->extents()[extent_].first_run + run];
  const uint32_t tile_elements = layout_->tile_elements();
  const uint32_t last = (part.extent_offset + part.elements - 1) / tile_elements;
  optim::TensorSquares sum;
  for (uint32_t tile = part.extent_offset / tile_elements; tile <= last; ++tile) {
    optim::AddTile(tiles_[tile + run], &sum);
  }
  return sum;
}

}  // namespace ballast::server
