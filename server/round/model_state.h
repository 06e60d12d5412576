// ModelState: the state of the extents that this server owns: their arrays in memory or on NVMe,
// and the weights of the present version.
// Comes from: Engine::Make. Goes to: Sweep, InitialWeights, StateSender, ImageKeeper, growth.
// Thread safety: on the job's strand, but for what ExtentStore allows workers.
#pragma once

#include "server/round/weights.h"
#include "server/state/extent_store.h"
#include "server/tier/nvme_tier.h"

namespace ballast::server {

struct ModelState {
  ExtentStore store;
  NvmeTier* nvme;  // the store's tier, if it is on NVMe; else null
  Weights weights;
};

}  // namespace ballast::server
