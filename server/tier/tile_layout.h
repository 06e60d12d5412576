// Where the arrays of an extent's optimizer state lie in memory: tile by tile, and inside a tile
// array by array: the master weight, then the optimizer's own. One tile of AdamW (p, m, v) is
// one contiguous 768 KiB record: the unit of a kernel call and of disk I/O. Arrays of a whole
// extent a power of two apart would fall into the same cache sets; inside a tile they are at most
// 256 KiB apart, which the kernels stream without loss. Comes from: the layout's tile size. Goes
// to: server/tier and server/state, which allocate and address the arrays; StepArgs. Thread safety:
// pure functions.
//
//   tile 0: [p: T floats][m: T floats][v: T floats]  tile 1: ...  last tile: its own T, rounded up
//
// All offsets and sizes are in floats from the start of the extent's state, which is aligned to 64
// bytes at least; every array then starts on a cache line.
#pragma once

#include <cstddef>
#include <cstring>

namespace ballast::tier {

// Elements in the last, short tile are padded to whole cache lines of floats.
inline constexpr size_t kArrayAlignFloats = 16;

// Elements of tile `tile` in an extent of `extent_elements`; 0 past the end.
constexpr size_t TileElements(size_t extent_elements, size_t tile_elements, size_t tile) {
  const size_t begin = tile * tile_elements;
  if (begin >= extent_elements) return 0;
  const size_t left = extent_elements - begin;
  return left < tile_elements ? left : tile_elements;
}

// Floats from one array of a tile to the next, for a tile that holds `elements`.
constexpr size_t ArrayStride(size_t elements) {
  return (elements + kArrayAlignFloats - 1) / kArrayAlignFloats * kArrayAlignFloats;
}

// The first float of array `array` of tile `tile`; 0 is the master weight. `tile_elements` is a
// multiple of 16; `arrays` counts all arrays of a tile, 3 for AdamW.
constexpr size_t ArrayOffset(size_t extent_elements, size_t tile_elements, size_t arrays,
                             size_t tile, size_t array) {
  const size_t elements = TileElements(extent_elements, tile_elements, tile);
  return tile * tile_elements * arrays + array * ArrayStride(elements);
}

// Floats of the whole extent's state, padding included.
constexpr size_t StateFloats(size_t extent_elements, size_t tile_elements, size_t arrays) {
  const size_t whole_tiles = extent_elements / tile_elements;
  const size_t last = extent_elements - whole_tiles * tile_elements;
  return (whole_tiles * tile_elements + ArrayStride(last)) * arrays;
}

// Whether the state has the bytes of the packed form of an image, so that an image can be written
// from it: the arrays of a short last tile end on cache lines.
constexpr bool IsPacked(size_t extent_elements, size_t tile_elements) {
  return extent_elements % tile_elements % kArrayAlignFloats == 0;
}

// Converts the packed form of an image, array after array, to the one above: moves the arrays of
// the short last tile apart, in place. Whole tiles are the same in both.
inline void SpreadLastTile(size_t extent_elements, size_t tile_elements, size_t arrays,
                           float* state) {
  const size_t whole_tiles = extent_elements / tile_elements;
  const size_t last = extent_elements - whole_tiles * tile_elements;
  float* const tile = state + whole_tiles * tile_elements * arrays;
  for (size_t array = arrays; array-- > 1 && last > 0;) {
    std::memmove(tile + array * ArrayStride(last), tile + array * last, last * sizeof(float));
  }
}

// The inverse.
inline void PackLastTile(size_t extent_elements, size_t tile_elements, size_t arrays,
                         float* state) {
  const size_t whole_tiles = extent_elements / tile_elements;
  const size_t last = extent_elements - whole_tiles * tile_elements;
  float* const tile = state + whole_tiles * tile_elements * arrays;
  for (size_t array = 1; array < arrays && last > 0; ++array) {
    std::memmove(tile + array * last, tile + array * ArrayStride(last), last * sizeof(float));
  }
}

static_assert(ArrayOffset(1 << 20, 1 << 16, 3, 15, 2) == 15 * 3 * 65536 + 2 * 65536);
static_assert(ArrayOffset(65536 + 17, 1 << 16, 3, 1, 2) == 3 * 65536 + 2 * 32);
static_assert(StateFloats(65536 + 17, 1 << 16, 3) == 3 * (65536 + 32));
static_assert(StateFloats(65536, 1 << 16, 3) == 3 * 65536);
static_assert(IsPacked(65536 + 16, 1 << 16) && !IsPacked(65536 + 17, 1 << 16));

}  // namespace ballast::tier
