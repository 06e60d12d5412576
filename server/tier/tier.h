// Tier: where the state arrays (p, m, v) of extents live. The step walks an extent tile by tile
// and asks the tier for each tile's planes; a tier on NVMe may load them meanwhile.
// Comes from: server/state. Goes to: the optimizer kernels, in place.
// Thread safety: AddExtent on one thread while nothing else runs; Tile from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::server {

// The state arrays of one tile. The memory belongs to the tier and stays valid while it lives;
// planes hold `elements` fp32 values each (docs/numerics.md names them).
struct TileView {
  float* p = nullptr;  // master weights
  float* m = nullptr;  // first moment, torch's exp_avg
  float* v = nullptr;  // second moment, torch's exp_avg_sq
  uint32_t elements = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;
  // Makes room for an extent of `elements` values in tiles of `tile_elements`; all zero.
  // Errors: RESOURCE_EXHAUSTED with the bytes asked for.
  virtual absl::Status AddExtent(uint32_t extent, uint32_t elements) = 0;
  virtual TileView Tile(uint32_t extent, uint32_t tile) = 0;
  // All state of the extent, as tile_layout.h places it: whole pages from a page's start, so that
  // direct I/O can fill it. The tier's, while it lives.
  virtual float* State(uint32_t extent) = 0;
  virtual uint64_t bytes() const = 0;
};

// Bytes AddExtent takes for an extent, whole pages, for planning before anything is allocated.
uint64_t DramExtentBytes(uint32_t elements, uint32_t tile_elements);

// State in huge-page memory, p|m|v interleaved per tile (tile_layout.h), updated in place.
std::unique_ptr<Tier> MakeDramTier(uint32_t tile_elements);

}  // namespace ballast::server
