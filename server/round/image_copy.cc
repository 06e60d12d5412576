#include "server/round/image_copy.h"

#include <algorithm>
#include <utility>

#include "common/base/crc32c.h"
#include "server/durability/image_file.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

// A payload that is made piece by piece, and the checksums of its chunks.
class ImageWriter {
 public:
  explicit ImageWriter(char* to) : at_(to) {}

  void Put(const char* from, size_t bytes) {
    while (bytes > 0) {
      const size_t piece = std::min(bytes, kImageChunkBytes - in_chunk_);
      crc_ = Crc32cCopy(at_, from, piece, crc_);
      at_ += piece;
      from += piece;
      bytes -= piece;
      in_chunk_ += piece;
      if (in_chunk_ == kImageChunkBytes) EndChunk();
    }
  }

  std::vector<uint32_t> Finish() && {
    if (in_chunk_ > 0) EndChunk();
    return std::move(crcs_);
  }

 private:
  void EndChunk() {
    crcs_.push_back(std::exchange(crc_, 0));
    in_chunk_ = 0;
  }

  char* at_;
  size_t in_chunk_ = 0;
  uint32_t crc_ = 0;
  std::vector<uint32_t> crcs_;
};

}  // namespace

std::vector<uint32_t> CopyToImage(const Layout& layout, ExtentStore* store, uint32_t extent,
                                  void* to) {
  ImageWriter image(static_cast<char*>(to));
  for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
    const TileView tile = store->Tile(extent, t);
    for (uint32_t a = 0; a < tile.arrays; ++a) {
      image.Put(reinterpret_cast<const char*>(tile.array[a]),
                size_t{tile.elements} * sizeof(float));
    }
  }
  return std::move(image).Finish();
}

uint64_t LargestImageBytes(const Layout& layout, const std::vector<uint32_t>& extents,
                           uint32_t arrays) {
  uint64_t largest = 0;
  for (const uint32_t extent : extents) {
    const uint32_t elements = layout.extents()[extent].elements;
    largest = std::max(largest, ImageFile::BufferBytes({extent, elements, arrays}));
  }
  return largest;
}

}  // namespace ballast::server
