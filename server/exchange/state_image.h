// The state of an extent as an image holds it: tile after tile, each state array's values of that
// tile, without padding. Elements of one array lie in pieces of at most a tile.
// Comes from: images. Goes to: ExportWriter, ImportSource. Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "common/tensor/layout.h"

namespace ballast::server {

// One state array of an extent in its image.
struct ArrayPieces {
  const Layout& layout;  // borrowed
  uint32_t extent = 0;
  uint32_t arrays = 0;  // of the image
  uint32_t array = 0;   // which of them

  // Copies elements [begin, begin + count) of the array from `image` to `to`, which has room for
  // `count` and need not be aligned.
  void Gather(const float* image, uint32_t begin, uint32_t count, void* to) const;
  // The inverse.
  void Scatter(const void* from, uint32_t begin, uint32_t count, float* image) const;
};

}  // namespace ballast::server
