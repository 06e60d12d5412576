// The state of an extent as an image holds it: tile after tile, each state array's values of that
// tile, without padding. Elements of one array lie in pieces of at most a tile.
// Comes from: images. Goes to: ExportWriter, ImportSource. Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "common/tensor/layout.h"

namespace ballast::server {

// Copies elements [begin, begin + count) of state array `array` of the extent from `image` to `to`,
// which has room for `count` and need not be aligned.
void GatherArray(const Layout& layout, uint32_t extent, const float* image, uint32_t array,
                 uint32_t begin, uint32_t count, void* to);
// The inverse.
void ScatterArray(const Layout& layout, uint32_t extent, const void* from, uint32_t array,
                  uint32_t begin, uint32_t count, float* image);

}  // namespace ballast::server
