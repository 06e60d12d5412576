// Makes an engine: memory for its state, and for a durable job the state in its files.
// Comes from: RoundEngine::Create, the simulator. Goes to: Recover, RoundDriver.
// Thread safety: any thread; blocks on the disk.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/durability/job_storage.h"
#include "server/engine/round_driver.h"
#include "server/engine/round_engine.h"
#include "server/round/job_plan.h"

namespace ballast::server {

// As RoundEngine::Create, but for the text of its errors.
absl::StatusOr<std::shared_ptr<RoundDriver>> MakeEngine(const JobPlan& plan,
                                                        const EngineConfig& config,
                                                        const EngineDeps& deps,
                                                        std::unique_ptr<JobStorage> storage);

}  // namespace ballast::server
