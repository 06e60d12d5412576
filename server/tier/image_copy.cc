#include "server/tier/image_copy.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"
#include "common/io/arena.h"
#include "common/io/file.h"

namespace ballast::server {
namespace {

// Builds a payload piece by piece, with the checksums of its chunks.
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

std::vector<PlacedExtent> PlacedOf(const Layout& layout, const std::vector<uint32_t>& owned,
                                   const std::vector<PlacedExtent>& before, uint64_t version) {
  std::set<uint32_t> known;
  for (const PlacedExtent& one : before) known.insert(one.extent);
  std::vector<PlacedExtent> placed;
  for (const uint32_t extent : owned) {
    const bool fresh = known.count(extent) == 0;
    placed.push_back({extent, layout.extents()[extent].elements, fresh ? 0 : version, fresh});
  }
  return placed;
}

std::vector<uint32_t> CopyToImage(float* state, uint32_t elements, const StateShape& shape,
                                  void* to) {
  ImageWriter image(static_cast<char*>(to));
  const uint32_t tiles = (elements + shape.tile_elements - 1) / shape.tile_elements;
  for (uint32_t t = 0; t < tiles; ++t) {
    const TileView tile = TileAt(state, elements, shape, t);
    for (uint32_t a = 0; a < tile.arrays; ++a) {
      image.Put(reinterpret_cast<const char*>(tile.array[a]),
                size_t{tile.elements} * sizeof(float));
    }
  }
  return std::move(image).Finish();
}

uint64_t LargestImageBytes(const std::vector<PlacedExtent>& extents, uint32_t arrays) {
  uint64_t largest = 0;
  for (const PlacedExtent& one : extents) {
    largest = std::max(largest, ImageFile::BufferBytes({one.extent, one.elements, arrays}));
  }
  return largest;
}

absl::Status CopyExtents(const std::vector<PlacedExtent>& extents, uint32_t arrays,
                         ImageFile* images, uint64_t version, const FormPayload& payload) {
  const uint64_t largest = std::max(LargestImageBytes(extents, arrays), uint64_t{kPageBytes});
  BALLAST_ASSIGN_OR_RETURN(const Arena image, Arena::Create(largest));
  for (const PlacedExtent& one : extents) {
    BALLAST_ASSIGN_OR_RETURN(const std::vector<uint32_t> crcs, payload(one, image.data()));
    BALLAST_RETURN_IF_ERROR(images->Write(one.extent, version, image.data(), crcs));
  }
  return images->Sync();
}

}  // namespace ballast::server
