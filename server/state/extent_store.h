// ExtentStore: the extents a server owns of one job, as typed reads and writes over a tier.
// Comes from: server/round. Goes to: server/tier. Thread safety: Add and WriteMaster on the job's
// strand while no step runs; StepTile from any worker, each tile once per round. All but Add want
// an extent acquired from the tier.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/job/upload_plane.h"
#include "common/tensor/layout.h"
#include "server/optim/scalars.h"
#include "server/state/extent_squares.h"
#include "server/tier/tier.h"

namespace ballast::server {

// How one round steps one extent. Memory is the caller's until every tile is done.
struct ExtentStep {
  const void* grad = nullptr;  // whole extent: the fp32 sum, or the one slot's wire-dtype register
  DType grad_dtype = DType::kF32;
  void* weight = nullptr;  // out, whole extent in the extent's wire dtype
  float scale = 1;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  // Per tensor; null: no gradient anywhere, its state stays as it is.
  const std::vector<const optim::Scalars*>* scalars = nullptr;
  // Else a step: `grad` holds weights, which take the masters' place, or a plane of state, in the
  // extent's wire dtype; all other bits of the state stay as they are.
  UploadPlane upload = UploadPlane::kNone;
};

class ExtentStore {
 public:
  // A tier of its own, or one that outlives it.
  ExtentStore(std::unique_ptr<Tier> tier, const optim::KernelTable* kernels);
  ExtentStore(Tier* tier, const optim::KernelTable* kernels);

  // Makes room for `extents` of `layout`, with initial values (StateShape). Errors:
  // RESOURCE_EXHAUSTED.
  absl::Status Add(const Layout& layout, const std::vector<uint32_t>& extents);

  // Sets master weights from `count` elements of the extent's wire dtype at `src`, starting at
  // element `offset`.
  void WriteMaster(const Layout& layout, uint32_t extent, uint32_t offset, const void* src,
                   uint32_t count);

  // Steps one tile of an extent and writes its weights. Returns how many finite masters became Inf
  // in a 16-bit weight.
  uint64_t StepTile(const Layout& layout, uint32_t extent, uint32_t tile, const ExtentStep& step);

  // LAMB's first pass over one tile: writes the sums of squares of each of its runs whose tensor
  // `step` has scalars for, to `squares` of the same extent. Changes no state, and uses neither
  // `step.weight` nor an upload. Any worker, each tile once.
  void SquareTile(const Layout& layout, uint32_t extent, uint32_t tile, const ExtentStep& step,
                  ExtentSquares* squares) const;

  // Rounds the extent's current masters to its wire dtype into `dst` (whole extent).
  void ReadWeights(const Layout& layout, uint32_t extent, void* dst);

  // A tile's arrays, in place: read-only for exports while no round is applied.
  TileView Tile(uint32_t extent, uint32_t tile) { return tier_->Tile(extent, tile); }
  // All arrays of an extent, see Tier::State.
  float* State(uint32_t extent) { return tier_->State(extent); }
  uint64_t bytes() const { return tier_->bytes(); }
  Tier* tier() const { return tier_; }
  const optim::KernelTable* kernels() const { return kernels_; }

 private:
  // Sets the plane that `step` uploads from `from`, and writes the weights of the tile.
  uint64_t UploadTile(const TileView& tile, const char* from, DType weight_dtype, char* weight,
                      const ExtentStep& step) const;

  std::unique_ptr<Tier> own_;
  Tier* tier_;
  const optim::KernelTable* kernels_;
};

// Tiles of an extent; the last one may be short.
uint32_t TileCount(const Layout& layout, uint32_t extent);

}  // namespace ballast::server
