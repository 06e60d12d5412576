#include "server/exchange/state_image.h"

#include <algorithm>
#include <cstring>

namespace ballast::server {
namespace {

// Calls piece(floats from the image's start, elements from `begin` on, elements).
template <typename Piece>
void ForEachPiece(const ArrayPieces& of, uint32_t begin, uint32_t count, const Piece& piece) {
  const uint32_t elements = of.layout.extents()[of.extent].elements;
  const uint32_t tile_elements = of.layout.tile_elements();
  for (uint32_t done = 0; done < count;) {
    const uint32_t at = begin + done;
    const uint32_t tile_begin = at / tile_elements * tile_elements;
    const uint32_t in_tile = std::min(tile_elements, elements - tile_begin);
    const uint32_t take = std::min(count - done, tile_begin + in_tile - at);
    piece(size_t{tile_begin} * of.arrays + size_t{of.array} * in_tile + (at - tile_begin), done,
          take);
    done += take;
  }
}

}  // namespace

void ArrayPieces::Gather(const float* image, uint32_t begin, uint32_t count, void* to) const {
  ForEachPiece(*this, begin, count, [&](size_t at, uint32_t done, uint32_t take) {
    std::memcpy(static_cast<char*>(to) + size_t{done} * sizeof(float), image + at,
                take * sizeof(float));
  });
}

void ArrayPieces::Scatter(const void* from, uint32_t begin, uint32_t count, float* image) const {
  ForEachPiece(*this, begin, count, [&](size_t at, uint32_t done, uint32_t take) {
    std::memcpy(image + at, static_cast<const char*>(from) + size_t{done} * sizeof(float),
                take * sizeof(float));
  });
}

}  // namespace ballast::server
