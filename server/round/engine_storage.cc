// Engine: creation and what goes to disk: reduced extents, checkpoints, failures. See engine.h.
// Thread safety: Make on any thread; the rest on the job's strand.
#include <algorithm>
#include <optional>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/worker_pool.h"
#include "server/round/engine.h"
#include "server/round/recovery.h"

namespace ballast::server {

namespace {

// The tier that `config` asks for; `nvme` points to it if it is on NVMe.
absl::StatusOr<std::unique_ptr<Tier>> MakeTier(const JobPlan& plan, const EngineConfig& config,
                                               NvmeTier** nvme) {
  if (config.nvme_extents == 0) return MakeDramTier(plan.spec.tile_elements);
  if (plan.spec.durability == Durability::kNone) {
    return absl::InvalidArgumentError(
        "a job of durability none has no images that its state could live in");
  }
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<NvmeTier> made,
                           NvmeTier::Create({.tile_elements = plan.spec.tile_elements,
                                             .extent_elements = plan.spec.extent_elements,
                                             .buffers = config.nvme_extents}));
  *nvme = made.get();
  return std::unique_ptr<Tier>(std::move(made));
}

// Gives memory to the buffers of one round: the first after a restart is waited for, and where the
// system is slow to give memory it would take several times as long as the others.
void WarmBuffers(const Layout& layout, const std::vector<uint32_t>& owned,
                 std::vector<BufferPool>* weight_pools, Contributions* contributions) {
  size_t wide = 0;
  for (const uint32_t extent : owned) wide += layout.extents()[extent].dtype == DType::kF32;
  (*weight_pools)[0].Prepare(wide);
  (*weight_pools)[1].Prepare(owned.size() - wide);
  contributions->Prepare(layout, owned);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Engine>> Engine::Make(const JobPlan& plan,
                                                     const EngineConfig& config,
                                                     const EngineDeps& deps,
                                                     std::unique_ptr<JobStorage> storage) {
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_CHECK((storage != nullptr) == (plan.spec.durability != Durability::kNone));
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  RoundFsm fsm(plan, layout, config.self, config.chunk_bytes, config.window_extents);
  NvmeTier* nvme = nullptr;
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, MakeTier(plan, config, &nvme));
  ExtentStore store(std::move(tier), &optim::Kernels(deps.isa));
  BALLAST_RETURN_IF_ERROR(store.Add(layout, fsm.owned()));
  BALLAST_ASSIGN_OR_RETURN(
      Contributions contributions,
      Contributions::Create(layout, fsm.owned().size(), plan.epoch, config.window_extents));
  BALLAST_ASSIGN_OR_RETURN(std::vector<BufferPool> weight_pools,
                           MakeWeightPools(layout, fsm.owned().size()));
  std::unique_ptr<WorkerPool> warming;  // while recovery waits for the disk
  if (storage != nullptr && !storage->log()->rounds().empty()) {
    warming = deps.executors->MakeWorkers("warming", 2);
    warming->Submit(
        1, [tier = store.tier()](size_t) { tier->Warm(); }, [] {});
    warming->Submit(
        1, [&](size_t) { WarmBuffers(layout, fsm.owned(), &weight_pools, &contributions); }, [] {});
  }
  Recovered recovered;
  std::vector<uint64_t> versions(fsm.owned().size(), 0);
  std::unique_ptr<RoundLog> log;
  if (storage == nullptr) {
    log = std::make_unique<NullRoundLog>();
  } else {
    // Twice as many extents at a time as can be worked on: the others wait for the disk.
    int lanes = 4 * deps.workers->threads();
    if (nvme != nullptr) lanes = std::min(lanes, static_cast<int>(config.nvme_extents));
    BALLAST_ASSIGN_OR_RETURN(recovered, Recover(plan, layout, fsm.owned(), storage.get(), &store,
                                                lanes, nvme, deps.executors));
    warming.reset();
    for (const auto& [extent, logged] : recovered.open_extents) {
      BALLAST_ASSIGN_OR_RETURN(char* const to,
                               contributions.Restore(layout, fsm.Contributors(extent), logged));
      BALLAST_RETURN_IF_ERROR(storage->log()->ReadExtent(logged, to));
    }
    versions = recovered.image_versions;
    const uint64_t durable =
        recovered.fsm.prepared.has_value() ? recovered.fsm.round : recovered.fsm.round - 1;
    log = JobStorage::MakeRoundLog(std::move(storage), durable, deps.executors,
                                   nvme != nullptr ? config.tier_threads : 0);
  }
  // A tier on NVMe writes its images itself.
  const std::vector<uint32_t> checkpointed =
      nvme == nullptr ? fsm.owned() : std::vector<uint32_t>();
  if (nvme != nullptr) versions.clear();
  BALLAST_ASSIGN_OR_RETURN(
      Checkpointer checkpointer,
      Checkpointer::Create(layout, checkpointed, versions, config.checkpoint_rounds));
  auto engine =
      std::make_shared<Engine>(config, deps, std::move(fsm), std::move(contributions),
                               std::move(store), nvme, std::move(checkpointer), std::move(log));
  engine->weight_pools_ = std::move(weight_pools);
  if (engine->fsm_.durable()) engine->Resume(recovered);
  // On the strand: the first reads may end while later ones are begun.
  engine->Post([e = engine.get()] { e->ConnectTier(); });
  return engine;
}

void Engine::WatchRoom() {
  log_->OnShortOfRoom([pump = FromDisk([](Engine* self, const absl::Status&) {
                         self->PumpCheckpoints();
                       })] { pump(absl::OkStatus()); });
}

void Engine::LogExtent(uint32_t extent, const ReducedNorm& reduced) {
  if (!fsm_.durable()) return;
  const GradientView grad = contributions_.Gradient(fsm_.layout(), extent);
  log_->AppendExtent({.at = {.epoch = fsm_.plan().epoch.epoch,
                             .round = fsm_.round(),
                             .extent = extent,
                             .dtype = grad.dtype,
                             .sumsq = reduced.norm.sumsq,
                             .nonfinite = reduced.norm.nonfinite,
                             .bytes = grad.bytes,
                             .first_nonfinite = reduced.first_nonfinite},
                      .data = grad.data,
                      .owner = grad.owner});
}

// Copies states that are due to their images; the state is that of version fsm_.round() unless a
// step is under way.
void Engine::PumpCheckpoints() {
  if (!log_->keeps_images() || fsm_.phase() == Phase::kApplying || ended_) return;
  if (nvme_ != nullptr) return SaveOldExtents();
  checkpointer_.Pump(
      fsm_.layout(), &store_, log_.get(), fsm_.round(), log_->short_of_room(),
      FromDisk([generation = log_generation_](Engine* self, const absl::Status& status) {
        // Not one of files that the job has outgrown.
        if (self->log_generation_ == generation) self->OnImageWritten(status);
      }));
}

void Engine::OnImageWritten(const absl::Status& status) {
  checkpointer_.OnWritten();
  if (!status.ok()) {
    StorageFailed(status);
    return;
  }
  PumpCheckpoints();
  if (prepare_waiting_.has_value() && !checkpointer_.initial_pending()) {
    PrepareNow(*std::exchange(prepare_waiting_, std::nullopt));
  }
}

// After a failed write or flush nothing may be assumed about the file: the server ends, and goes on
// from what was durable when it is started again.
void Engine::StorageFailed(const absl::Status& status) {
  if (ended_) return;  // What was under way then is broken off.
  const absl::Status failed = ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kStorageFailed,
      absl::StrCat("job \"", name_, "\": server ", config_.self, " cannot use its disk: ",
                   status.message(), ". Look at the disk and start the server again"),
      {.job = name_, .round = fsm_.round(), .server = static_cast<int>(config_.self)});
  BALLAST_LOG(ERROR, LogField("run", name_), LogField("round", fsm_.round())) << failed.message();
  if (deps_.storage_failed) {
    deps_.storage_failed(failed);
  } else {
    Feed(FailInput{failed});
  }
}

absl::StatusOr<std::shared_ptr<RoundEngine>> RoundEngine::Create(
    const JobPlan& plan, const EngineConfig& config, const EngineDeps& deps,
    std::unique_ptr<JobStorage> storage) {
  auto engine = Engine::Make(plan, config, deps, std::move(storage));
  if (!engine.ok()) return StateLostIn(plan, config.self, engine.status());
  return engine;
}

}  // namespace ballast::server
