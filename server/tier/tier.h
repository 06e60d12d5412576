// Tier: where the state arrays of extents live: the master weight and the optimizer's own. A
// reader or a step of an extent acquires it first and releases it afterwards; in between its arrays
// are in memory. In DRAM they always are; the NVMe tier (nvme_tier.h) loads them and makes room by
// writing others out. Comes from: server/state, server/round. Goes to: the optimizer kernels, in
// place. Thread safety: thread-compatible, owned by the job's strand, but for Tile and State of an
// acquired extent, which any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/job_spec.h"

namespace ballast::server {

// Shape of the state of all extents of a job.
struct StateShape {
  uint32_t tile_elements = 0;
  uint32_t arrays = 0;  // per parameter, the master weight included; at most kStateArraysMax
  float initial[kStateArraysMax] = {};  // of each array's elements, before the first step
};

// The shape for a job. The spec must be valid.
StateShape StateShapeOf(const JobSpec& spec);

// The state arrays of one tile. The memory belongs to the tier and stays valid while it lives;
// each array holds `elements` fp32 values.
struct TileView {
  float* array[kStateArraysMax] = {};  // the master weight first; common/job/optimizer.h names them
  uint32_t arrays = 0;                 // arrays in use
  uint32_t elements = 0;

  float* master() const { return array[0]; }
};

// Tile `tile` of an extent whose state stands at `state`, see tile_layout.h.
TileView TileAt(float* state, uint32_t elements, const StateShape& shape, uint32_t tile);

// Gives the arrays of an extent at `state`, all zero so far, their initial values.
void FillInitial(float* state, uint32_t elements, const StateShape& shape);

class Tier {
 public:
  using Ready = std::function<void(absl::Status)>;

  virtual ~Tier() = default;
  // Makes room for an extent of `elements` values and fills in the initial ones.
  // Errors: RESOURCE_EXHAUSTED with the bytes requested.
  virtual absl::Status AddExtent(uint32_t extent, uint32_t elements) = 0;

  // Calls `ready` once the arrays of the extent are in memory; within the call if they already
  // are. An extent may be acquired several times. After an error there is nothing to release.
  // Errors: those of the disk; then every later call fails with the same error.
  virtual void Acquire(uint32_t extent, Ready ready) = 0;
  // Ends one Acquire. A nonzero `version` says that the arrays were changed and are now the state
  // that round `version` starts from.
  virtual void Release(uint32_t extent, uint64_t version) = 0;
  // Announces that `extents` are acquired next, one after the other, in the returned order: the
  // given one, first layers first, or its reverse. The order changes no bit, only the bytes moved.
  virtual std::vector<uint32_t> BeginSweep(std::vector<uint32_t> extents) = 0;
  // How many extents of a sweep should be acquired at a time, those in work included.
  virtual size_t sweep_depth() const = 0;
  // How many extents a reader outside of sweeps should have acquired at a time, however long it
  // keeps them.
  virtual size_t read_depth() const = 0;

  // A tile of an acquired extent.
  virtual TileView Tile(uint32_t extent, uint32_t tile) = 0;
  // All state of an acquired extent, as tile_layout.h places it: whole pages from a page's start,
  // so that direct I/O can fill it. The tier owns the memory.
  virtual float* State(uint32_t extent) = 0;
  // Memory of the tier.
  virtual uint64_t bytes() const = 0;
  // Touches the memory of the extents before its first use, see Arena::Touch. Any thread, also
  // during State and Tile.
  virtual void Warm() const {}
};

// Bytes that AddExtent takes for an extent, in whole pages, for planning before any allocation.
uint64_t DramExtentBytes(uint32_t elements, const StateShape& shape);

}  // namespace ballast::server
