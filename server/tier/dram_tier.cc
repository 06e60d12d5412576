// The tier in memory: extents one after the other in huge-page arenas, stepped in place.
#include "server/tier/dram_tier.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/bytes/round_up.h"
#include "common/faults/mutant.h"
#include "common/io/arena.h"
#include "common/io/file.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {
namespace {

class ArenaTier final : public DramTier {
 public:
  explicit ArenaTier(const StateShape& shape) : shape_(shape) {}

  absl::Status AddExtent(uint32_t extent, uint32_t elements) override {
    const uint64_t need = DramExtentBytes(elements, shape_);
    if (pieces_.empty() || pieces_.back().arena.bytes() - pieces_.back().used < need) {
      // Double the memory each time, so that a small job takes little and a large one few arenas.
      constexpr uint64_t kArenaBytesMost = uint64_t{64} << 20;
      const uint64_t bytes = std::max(need, std::min(bytes_, kArenaBytesMost));
      BALLAST_ASSIGN_OR_RETURN(Arena arena, Arena::Create(bytes));
      pieces_.push_back({std::move(arena), 0});
    }
    Piece& piece = pieces_.back();
    Block& block = extents_[extent];
    block.base = reinterpret_cast<float*>(piece.arena.data() + piece.used);
    block.elements = elements;
    FillInitial(block.base, elements, shape_);
    piece.used += need;
    bytes_ += need;
    return absl::OkStatus();
  }

  void Acquire(uint32_t extent, Ready ready) override {
    Block& block = Find(extent);
    if (block.writes == 0 || BALLAST_MUTANT(kStepUnderWrite)) return ready(absl::OkStatus());
    BALLAST_PROBE(kStepWaits);
    block.waiting.push_back(std::move(ready));
  }
  void Release(uint32_t, uint64_t) override {}
  std::vector<uint32_t> BeginSweep(std::vector<uint32_t> extents) override { return extents; }
  size_t sweep_depth() const override { return std::numeric_limits<size_t>::max(); }
  size_t read_depth() const override { return std::numeric_limits<size_t>::max(); }

  TileView Tile(uint32_t extent, uint32_t tile) override {
    const Block& block = Find(extent);
    return TileAt(block.base, block.elements, shape_, tile);
  }

  float* State(uint32_t extent) override { return Find(extent).base; }

  void BeginWrite(uint32_t extent) override {
    ++Find(extent).writes;
    ++writes_;
  }
  void EndWrite(uint32_t extent) override;
  void WhenQuiet(std::function<void()> quiet) override {
    when_quiet_.push_back(std::move(quiet));
    TellQuiet();
  }
  void DropWaiting() override {
    for (auto& [extent, block] : extents_) block.waiting.clear();
  }

  uint64_t bytes() const override { return bytes_; }

  void Warm() const override {
    for (const Piece& piece : pieces_) piece.arena.Touch(piece.used);
  }

 private:
  struct Piece {
    Arena arena;
    uint64_t used = 0;  // bytes from its start
  };
  struct Block {
    float* base = nullptr;
    uint32_t elements = 0;
    uint32_t writes = 0;        // under way
    std::deque<Ready> waiting;  // for their end
  };

  // Any thread: the map changes in AddExtent only, and blocks stay where they are.
  Block& Find(uint32_t extent) {
    const auto it = extents_.find(extent);
    BALLAST_CHECK(it != extents_.end());
    return it->second;
  }
  void TellQuiet() {
    while (writes_ == 0 && !when_quiet_.empty()) {
      const std::function<void()> quiet = std::move(when_quiet_.front());
      when_quiet_.pop_front();
      quiet();
    }
  }

  const StateShape shape_;
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
  std::unordered_map<uint32_t, Block> extents_;
  uint32_t writes_ = 0;  // of all extents
  std::deque<std::function<void()>> when_quiet_;
};

void ArenaTier::EndWrite(uint32_t extent) {
  Block& block = Find(extent);
  BALLAST_CHECK(block.writes > 0);
  --block.writes;
  --writes_;
  // Initial weights that waited for this write begin the next one.
  while (block.writes == 0 && !block.waiting.empty()) {
    const Ready ready = std::move(block.waiting.front());
    block.waiting.pop_front();
    ready(absl::OkStatus());
  }
  TellQuiet();
}

}  // namespace

StateShape StateShapeOf(const JobSpec& spec) {
  StateShape shape{.tile_elements = spec.tile_elements, .arrays = StateArrayCount(spec)};
  for (uint32_t a = 0; a < shape.arrays; ++a) {
    shape.initial[a] = BALLAST_MUTANT(kForgetInitialValue) ? 0.0f : InitialValue(spec, a);
  }
  return shape;
}

void FillInitial(float* state, uint32_t elements, const StateShape& shape) {
  const uint32_t tiles = (elements + shape.tile_elements - 1) / shape.tile_elements;
  for (uint32_t a = 0; a < shape.arrays; ++a) {
    if (shape.initial[a] == 0) continue;  // The pages of an arena stay untouched.
    for (uint32_t t = 0; t < tiles; ++t) {
      const TileView tile = TileAt(state, elements, shape, t);
      std::fill_n(tile.array[a], tile.elements, shape.initial[a]);
    }
  }
}

TileView TileAt(float* state, uint32_t elements, const StateShape& shape, uint32_t tile) {
  TileView view{
      .arrays = shape.arrays,
      .elements = static_cast<uint32_t>(tier::TileElements(elements, shape.tile_elements, tile))};
  for (uint32_t a = 0; a < shape.arrays; ++a) {
    view.array[a] = state + tier::ArrayOffset(elements, shape.tile_elements, shape.arrays, tile, a);
  }
  return view;
}

uint64_t DramExtentBytes(uint32_t elements, const StateShape& shape) {
  return RoundUp(tier::StateFloats(elements, shape.tile_elements, shape.arrays) * sizeof(float),
                 kPageBytes);
}

std::unique_ptr<DramTier> MakeDramTier(const StateShape& shape) {
  return std::make_unique<ArenaTier>(shape);
}

}  // namespace ballast::server
