#include "server/engine/engine.h"

#include <optional>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "common/threads/worker_pool.h"
#include "server/optim/dispatch.h"
#include "server/recovery/recovery.h"

namespace ballast::server {
namespace {

absl::StatusOr<ModelState> MakeState(const JobPlan& plan, const EngineConfig& config, simd::Isa isa,
                                     const RoundFsm& fsm) {
  if (config.nvme_extents != 0 && !IsDurable(plan)) {
    return absl::InvalidArgumentError(
        "a job of durability none has no images that its state could live in");
  }
  return MakeModelState({.shape = StateShapeOf(plan.spec),
                         .checkpoint_rounds = config.checkpoint_rounds,
                         .buffers = config.nvme_extents,
                         .image_threads = config.tier_threads},
                        fsm.layout(), fsm.owned(), &optim::Kernels(isa));
}

// Allocates state and buffers on other threads while recovery waits for the disk. The pool's end
// waits for them.
std::unique_ptr<WorkerPool> Warm(ExecutorSource* executors, const RoundFsm& fsm, ModelState* state,
                                 Contributions* contributions) {
  std::unique_ptr<WorkerPool> workers = executors->MakeWorkers("warming", 2);
  workers->Submit(
      1, [tier = state->store.tier()](size_t) { tier->Warm(); }, [] {});
  workers->Submit(
      1,
      [&fsm, state, contributions](size_t) {
        state->weights.Prepare(fsm.layout(), fsm.owned());
        contributions->Prepare(fsm.layout(), fsm.owned());
      },
      [] {});
  return workers;
}

// Reads state and open extents back from the files of a durable job.
absl::StatusOr<Recovered> RecoverJob(const JobPlan& plan, const EngineDeps& deps,
                                     const RoundFsm& fsm, JobStorage* storage, ModelState* state,
                                     Contributions* contributions) {
  storage->Measure(deps.clock, deps.metrics, plan.name(),
                   plan.spec.durability == Durability::kPower);
  const auto began = deps.clock->Now();
  std::unique_ptr<WorkerPool> warming;
  if (!storage->log()->rounds().empty()) {
    warming = Warm(deps.executors, fsm, state, contributions);
  }
  // More extents at a time than threads can work on: the others wait for the disk.
  const int lanes = 4 * deps.workers->threads();
  BALLAST_ASSIGN_OR_RETURN(Recovered recovered,
                           Recover(plan, fsm.layout(), fsm.owned(), storage, state, lanes,
                                   deps.executors, deps.recovered_extents));
  warming.reset();
  for (const auto& [extent, logged] : recovered.open_extents) {
    BALLAST_ASSIGN_OR_RETURN(
        char* const to, contributions->Restore(fsm.layout(), fsm.Contributors(extent), logged));
    if (BALLAST_MUTANT(kForgetOpenExtents)) continue;
    BALLAST_RETURN_IF_ERROR(storage->log()->ReadExtent(logged, to));
    if (deps.recovered_extents != nullptr) ++*deps.recovered_extents;  // Long work, once more.
  }
  if (deps.metrics != nullptr) {
    deps.metrics->AddRecovery(RecoveryPhase::kLoad, deps.clock->Now() - began);
    deps.metrics->recovery_replayed_rounds()->Add(recovered.replayed_rounds);
  }
  return recovered;
}

}  // namespace

absl::StatusOr<std::shared_ptr<RoundDriver>> MakeEngine(const JobPlan& plan,
                                                        const EngineConfig& config,
                                                        const EngineDeps& deps,
                                                        std::unique_ptr<JobStorage> storage) {
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_CHECK((storage != nullptr) == IsDurable(plan));
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  RoundFsm fsm(plan, layout, config.self, config.chunk_bytes, config.window_extents);
  BALLAST_ASSIGN_OR_RETURN(ModelState state, MakeState(plan, config, deps.isa, fsm));
  Contributions contributions(layout, fsm.owned(), plan.epoch, config.window_extents);
  std::optional<Recovered> recovered;
  std::shared_ptr<RoundLog> log = std::make_shared<NullRoundLog>();
  if (storage != nullptr) {
    BALLAST_ASSIGN_OR_RETURN(recovered,
                             RecoverJob(plan, deps, fsm, storage.get(), &state, &contributions));
    const uint64_t durable = recovered->fsm.round - (recovered->fsm.prepared.has_value() ? 0 : 1);
    log = JobStorage::MakeRoundLog(std::move(storage), durable, deps.executors,
                                   state.placement->image_threads());
  }
  // Not make_shared: weak pointers of timers would keep its memory for timing.job_ttl.
  std::shared_ptr<RoundDriver> engine =
      std::make_unique<RoundDriver>(config, deps,
                                    RoundDriver::Parts{std::move(fsm), std::move(contributions),
                                                       std::move(state), std::move(log)});
  engine->Open(recovered.has_value() ? &*recovered : nullptr);
  return engine;
}

absl::StatusOr<std::shared_ptr<RoundEngine>> RoundEngine::Create(
    const JobPlan& plan, const EngineConfig& config, const EngineDeps& deps,
    std::unique_ptr<JobStorage> storage) {
  auto engine = MakeEngine(plan, config, deps, std::move(storage));
  if (!engine.ok()) return StateLostIn(plan, config.self, engine.status());
  return engine;
}

}  // namespace ballast::server
