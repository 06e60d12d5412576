// Tier: where the state arrays (p, m, v) of extents live. A reader or a step of an extent acquires
// it first and releases it afterwards; in between its arrays are in memory. In DRAM they always
// are; the NVMe tier (nvme_tier.h) loads them and makes room by writing others out.
// Comes from: server/state, server/round. Goes to: the optimizer kernels, in place.
// Thread safety: thread-compatible, owned by the job's strand, but for Tile and State of an
// acquired extent, which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::server {

// The state arrays of one tile. The memory belongs to the tier and stays valid while it lives;
// arrays hold `elements` fp32 values each (docs/numerics.md names them).
struct TileView {
  float* p = nullptr;  // master weights
  float* m = nullptr;  // first moment, torch's exp_avg
  float* v = nullptr;  // second moment, torch's exp_avg_sq
  uint32_t elements = 0;
};

// Tile `tile` of an extent whose state stands at `state`, see tile_layout.h.
TileView TileAt(float* state, uint32_t elements, uint32_t tile_elements, uint32_t tile);

class Tier {
 public:
  using Ready = std::function<void(absl::Status)>;

  virtual ~Tier() = default;
  // Makes room for an extent of `elements` values in tiles of `tile_elements`; all zero.
  // Errors: RESOURCE_EXHAUSTED with the bytes asked for.
  virtual absl::Status AddExtent(uint32_t extent, uint32_t elements) = 0;

  // Calls `ready` once the arrays of the extent are in memory; within the call when they are there
  // already. An extent may be acquired several times. After an error there is nothing to release.
  // Errors: what the disk said; then every later call fails alike.
  virtual void Acquire(uint32_t extent, Ready ready) = 0;
  // Ends one Acquire. `version` other than 0: the arrays were changed, and are the state that round
  // `version` starts from.
  virtual void Release(uint32_t extent, uint64_t version) = 0;
  // The next extents to be acquired will be these, one after the other. Says nothing about bits,
  // only about what is worth keeping in memory.
  virtual void BeginSweep(std::vector<uint32_t> order) = 0;
  // How many extents of a sweep should be acquired at a time, those in work included.
  virtual size_t sweep_depth() const = 0;

  // Of an acquired extent.
  virtual TileView Tile(uint32_t extent, uint32_t tile) = 0;
  // All state of an acquired extent, as tile_layout.h places it: whole pages from a page's start,
  // so that direct I/O can fill it. The tier's.
  virtual float* State(uint32_t extent) = 0;
  // Of memory.
  virtual uint64_t bytes() const = 0;
  // Gives its memory pages before anybody asks for them, see Arena::TouchAll. On any thread, beside
  // State and Tile.
  virtual void Warm() const {}
};

// Bytes AddExtent takes for an extent, whole pages, for planning before anything is allocated.
uint64_t DramExtentBytes(uint32_t elements, uint32_t tile_elements);

// State in huge-page memory, p|m|v interleaved per tile (tile_layout.h), updated in place. Every
// extent counts as acquired, whether or not it is.
std::unique_ptr<Tier> MakeDramTier(uint32_t tile_elements);

}  // namespace ballast::server
