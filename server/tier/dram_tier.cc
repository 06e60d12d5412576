// The tier in memory: extents one behind the other in huge-page arenas, stepped in place.
// Comes from: server/state. Goes to: common/io arenas. Thread safety: see tier.h.
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/io/file.h"
#include "common/job/optimizer.h"
#include "server/tier/tier.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

class DramTier : public Tier {
 public:
  explicit DramTier(uint32_t tile_elements) : tile_elements_(tile_elements) {}

  absl::Status AddExtent(uint32_t extent, uint32_t elements) override {
    const uint64_t need = DramExtentBytes(elements, tile_elements_);
    if (arenas_.empty() || arenas_.back().bytes() - used_ < need) {
      constexpr uint64_t kArenaBytesMin = uint64_t{64} << 20;
      BALLAST_ASSIGN_OR_RETURN(Arena arena, Arena::Create(std::max(need, kArenaBytesMin)));
      arenas_.push_back(std::move(arena));
      used_ = 0;
    }
    extents_[extent] = {reinterpret_cast<float*>(arenas_.back().data() + used_), elements};
    used_ += need;
    bytes_ += need;
    return absl::OkStatus();
  }

  TileView Tile(uint32_t extent, uint32_t tile) override {
    const auto it = extents_.find(extent);
    BALLAST_CHECK(it != extents_.end());
    const Place& place = it->second;
    const auto plane = [&](size_t index) {
      return place.base +
             tier::PlaneOffset(place.elements, tile_elements_, kAdamWStateArrays, tile, index);
    };
    const size_t elements = tier::TileElements(place.elements, tile_elements_, tile);
    return {plane(0), plane(1), plane(2), static_cast<uint32_t>(elements)};
  }

  float* State(uint32_t extent) override {
    const auto it = extents_.find(extent);
    BALLAST_CHECK(it != extents_.end());
    return it->second.base;
  }

  uint64_t bytes() const override { return bytes_; }

 private:
  struct Place {
    float* base = nullptr;
    uint32_t elements = 0;
  };

  const uint32_t tile_elements_;
  std::vector<Arena> arenas_;
  uint64_t used_ = 0;  // of the newest arena
  uint64_t bytes_ = 0;
  std::unordered_map<uint32_t, Place> extents_;
};

}  // namespace

uint64_t DramExtentBytes(uint32_t elements, uint32_t tile_elements) {
  const uint64_t bytes =
      tier::StateFloats(elements, tile_elements, kAdamWStateArrays) * sizeof(float);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::unique_ptr<Tier> MakeDramTier(uint32_t tile_elements) {
  return std::make_unique<DramTier>(tile_elements);
}

}  // namespace ballast::server
