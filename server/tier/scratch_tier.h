// ScratchTier: a tier with memory for a single extent, the one being worked on.
// Comes from: recovery, captures. Goes to: ExtentStore. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/io/arena.h"
#include "common/tensor/layout.h"
#include "server/tier/tier.h"

namespace ballast::server {

class ScratchTier final : public Tier {
 public:
  // The memory, its own or borrowed, takes the state of any extent of `layout`, which outlives
  // this.
  ScratchTier(const Layout& layout, const StateShape& shape, Arena memory)
      : layout_(layout),
        shape_(shape),
        own_(std::move(memory)),
        memory_(reinterpret_cast<float*>(own_.data())) {}
  ScratchTier(const Layout& layout, const StateShape& shape, float* memory)
      : layout_(layout), shape_(shape), memory_(memory) {}

  absl::Status AddExtent(uint32_t, uint32_t) override { return absl::OkStatus(); }
  void Acquire(uint32_t, Ready ready) override { ready(absl::OkStatus()); }
  void Release(uint32_t, uint64_t) override {}
  std::vector<uint32_t> BeginSweep(std::vector<uint32_t> extents) override { return extents; }
  size_t sweep_depth() const override { return 1; }
  size_t read_depth() const override { return 1; }
  TileView Tile(uint32_t extent, uint32_t tile) override {
    return TileAt(memory_, layout_.extents()[extent].elements, shape_, tile);
  }
  float* State(uint32_t) override { return memory_; }
  uint64_t bytes() const override { return own_.bytes(); }

 private:
  const Layout& layout_;
  const StateShape shape_;
  const Arena own_;
  float* const memory_;
};

}  // namespace ballast::server
