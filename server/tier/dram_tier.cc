// The tier in memory: extents one behind the other in huge-page arenas, stepped in place.
// Comes from: server/state. Goes to: common/io arenas. Thread safety: see tier.h.
#include <algorithm>
#include <limits>
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

  void Acquire(uint32_t, Ready ready) override { ready(absl::OkStatus()); }
  void Release(uint32_t, uint64_t) override {}
  void BeginSweep(std::vector<uint32_t>) override {}
  size_t sweep_depth() const override { return std::numeric_limits<size_t>::max(); }

  TileView Tile(uint32_t extent, uint32_t tile) override {
    const auto it = extents_.find(extent);
    BALLAST_CHECK(it != extents_.end());
    return TileAt(it->second.base, it->second.elements, tile_elements_, tile);
  }

  float* State(uint32_t extent) override {
    const auto it = extents_.find(extent);
    BALLAST_CHECK(it != extents_.end());
    return it->second.base;
  }

  uint64_t bytes() const override { return bytes_; }

  void Warm() const override {
    for (const Arena& arena : arenas_) arena.TouchAll();
  }

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

TileView TileAt(float* state, uint32_t elements, uint32_t tile_elements, uint32_t tile) {
  const auto array = [&](size_t index) {
    return state + tier::ArrayOffset(elements, tile_elements, kAdamWStateArrays, tile, index);
  };
  return {array(0), array(1), array(2),
          static_cast<uint32_t>(tier::TileElements(elements, tile_elements, tile))};
}

uint64_t DramExtentBytes(uint32_t elements, uint32_t tile_elements) {
  const uint64_t bytes =
      tier::StateFloats(elements, tile_elements, kAdamWStateArrays) * sizeof(float);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::unique_ptr<Tier> MakeDramTier(uint32_t tile_elements) {
  return std::make_unique<DramTier>(tile_elements);
}

}  // namespace ballast::server
