// ModelState: the state of this server's extents: the placement of their arrays, and the weights of
// the present version.
// Comes from: Engine::Make. Goes to: Sweep, InitialWeights, StateSender, recovery, growth.
// Thread safety: on the job's strand, except the calls that ExtentStore allows workers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/layout.h"
#include "server/optim/dispatch.h"
#include "server/round/weights.h"
#include "server/state/extent_store.h"
#include "server/tier/state_placement.h"

namespace ballast::server {

struct ModelState {
  std::unique_ptr<StatePlacement> placement;
  ExtentStore store;  // over the placement's tier
  Weights weights;
};

// Room for the extents `owned` of `layout`, in push order, with their initial values. `kernels`
// outlive it. Errors: StatePlacement::Place's.
absl::StatusOr<ModelState> MakeModelState(const PlacementOptions& options, const Layout& layout,
                                          const std::vector<uint32_t>& owned,
                                          const optim::KernelTable* kernels);

}  // namespace ballast::server
