// ExtentSquares: the sums of LAMB's first pass over one extent, tile by tile, and their totals per
// run. Comes from: ExtentStore::SquareTile. Goes to: the second vote of a round.
// Thread safety: entries of different tiles may be written at the same time; Sum when all are.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/layout.h"
#include "server/optim/lamb.h"

namespace ballast::server {

class ExtentSquares {
 public:
  // Nothing measured yet: all sums are 0. 8 bytes for each tile and each run of the extent.
  ExtentSquares(const Layout& layout, uint32_t extent);

  // Sum of tile `tile`'s part of the extent's run `run`, both counted from the extent's first.
  optim::TileSquares* At(uint32_t tile, uint32_t run) { return &tiles_[tile + run]; }

  // Of the whole run: its tiles' sums added in double, in their order.
  optim::TensorSquares Sum(uint32_t run) const;

 private:
  const Layout* layout_;
  uint32_t extent_;
  // Tile t's part of run r is at t + r: from one part to the next at least one of them grows.
  std::vector<optim::TileSquares> tiles_;
};

}  // namespace ballast::server
