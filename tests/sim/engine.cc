#include "tests/sim/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

namespace {

constexpr int kTierThreads = 3;

absl::StatusOr<std::unique_ptr<Tier>> MakeTier(const JobPlan& plan, const Shape& shape,
                                               NvmeTier** nvme) {
  if (shape.nvme_extents == 0) return MakeDramTier(plan.spec.tile_elements);
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<NvmeTier> made,
                           NvmeTier::Create({.tile_elements = plan.spec.tile_elements,
                                             .extent_elements = plan.spec.extent_elements,
                                             .buffers = shape.nvme_extents}));
  *nvme = made.get();
  return std::unique_ptr<Tier>(std::move(made));
}

}  // namespace

SimEngine::SimEngine(const SimEngineDeps& deps, RoundFsm fsm, Contributions contributions,
                     ExtentStore store, NvmeTier* nvme, Checkpointer checkpointer,
                     std::shared_ptr<RoundLog> log)
    : deps_(deps),
      life_(deps.world->Life(deps.node)),
      step_kernels_(optim::Kernels(simd::DetectIsa())),
      reduce_kernels_(reduce::Kernels(simd::DetectIsa())),
      fsm_(std::move(fsm)),
      contributions_(std::move(contributions)),
      store_(std::move(store)),
      nvme_(nvme),
      checkpointer_(std::move(checkpointer)),
      log_(std::move(log)),
      sinks_(fsm_.plan().epoch.seats()),
      seats_(fsm_.plan().epoch.seats()) {}

absl::StatusOr<std::unique_ptr<SimEngine>> SimEngine::Make(const JobPlan& plan,
                                                           const SimEngineDeps& deps,
                                                           std::unique_ptr<JobStorage> storage) {
  const simd::Isa isa = simd::DetectIsa();
  const Shape& shape = deps.swarm->shape;
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  RoundFsm fsm(plan, layout, deps.server_id, shape.chunk_bytes, deps.window_extents);
  NvmeTier* nvme = nullptr;
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, MakeTier(plan, shape, &nvme));
  ExtentStore store(std::move(tier), &optim::Kernels(isa));
  BALLAST_RETURN_IF_ERROR(store.Add(layout, fsm.owned()));
  BALLAST_ASSIGN_OR_RETURN(
      Contributions contributions,
      Contributions::Create(layout, fsm.owned().size(), plan.epoch, deps.window_extents));
  BALLAST_ASSIGN_OR_RETURN(Recovered recovered,
                           Recover(plan, layout, fsm.owned(), storage.get(), &store,
                                   /*lanes=*/1, nvme));
  // A record that was on the disk when the home's process ended is as good as one it had told of.
  const bool home = plan.servers.front() == deps.server_id;
  if (home && plan.epoch.epoch > deps.oracle->newest().epoch) deps.oracle->OnEpoch(plan.epoch);
  deps.oracle->OnAdopted(deps.server_id, plan.epoch, deps.damaged);
  deps.oracle->OnRecovered(deps.server_id, recovered, deps.damaged);
  for (const auto& [extent, logged] : recovered.open_extents) {
    if (deps.mutant == Mutant::kForgetOpenExtents) break;
    BALLAST_ASSIGN_OR_RETURN(char* const to,
                             contributions.Restore(layout, fsm.Contributors(extent), logged));
    BALLAST_RETURN_IF_ERROR(storage->log()->ReadExtent(logged, to));
  }
  CoverRecovered(deps.world, recovered);
  SpoilRecovered(deps.mutant, plan, &recovered);
  const uint64_t durable =
      recovered.fsm.prepared.has_value() ? recovered.fsm.round : recovered.fsm.round - 1;
  const int tier_threads = nvme == nullptr ? 0 : shape.overlapping_flushes ? kTierThreads : 1;
  std::shared_ptr<RoundLog> log =
      JobStorage::MakeRoundLog(std::move(storage), durable, deps.threads, tier_threads);
  BALLAST_ASSIGN_OR_RETURN(
      Checkpointer checkpointer,
      Checkpointer::Create(layout, nvme == nullptr ? fsm.owned() : std::vector<uint32_t>(),
                           nvme == nullptr ? recovered.image_versions : std::vector<uint64_t>(),
                           shape.checkpoint_rounds));
  auto engine =
      std::make_unique<SimEngine>(deps, std::move(fsm), std::move(contributions), std::move(store),
                                  nvme, std::move(checkpointer), std::move(log));
  engine->Resume(std::move(recovered));
  engine->ConnectTier();
  return engine;
}

void SimEngine::CoverRecovered(World* world, const Recovered& recovered) {
  if (recovered.replayed_rounds > 0) world->Met(Cover::kReplay);
  if (!recovered.ahead.empty()) world->Met(Cover::kExtentAhead);
  if (!recovered.open_extents.empty()) world->Met(Cover::kRestoredGradient);
  if (recovered.fsm.prepared.has_value()) world->Met(Cover::kRestoredPrepared);
}

void SimEngine::After(Tick full, EventKind kind, std::function<void()> action) {
  const Tick delay = full == 0 ? 0 : deps_.world->random().Between(full / 4, full);
  deps_.world->AfterInLife(delay, deps_.node, life_, kind, std::move(action));
}

std::function<void(absl::Status)> SimEngine::OnStrand(
    std::function<void(const absl::Status&)> done) {
  return [this, done = std::move(done)](const absl::Status& status) {
    After(0, EventKind::kStrand, [done, status] { done(status); });
  };
}

void SimEngine::Feed(const Input& input) {
  Effects effects;
  fsm_.Step(input, &effects);
  CarryOut(effects);
}

void SimEngine::CarryOut(const Effects& effects) {
  for (const Effect& effect : effects) {
    if (!Alive()) return;
    std::visit([this](const auto& e) { Do(e); }, effect);
  }
}

// --- Collecting ---------------------------------------------------------------------------------

void SimEngine::Begin(uint32_t slot, const RoundBegin& begin) {
  if (slot >= sinks_.size() || sinks_[slot] == nullptr) return;
  Feed(BeginInput{slot, begin});
}

void SimEngine::Frame(const FrameHeader& frame, Payload payload) {
  const SinkPtr sink = !stray_ && frame.slot < sinks_.size() ? sinks_[frame.slot] : nullptr;
  std::optional<FrameRefused> refused = fsm_.RefusalOf(frame);
  const uint32_t crc =
      refused.has_value() ? payload.Crc32c(IdentityCrc(frame)) : Land(frame, payload);
  if (crc != frame.crc32c && !Is(Mutant::kNoChecksum)) {
    refused = FrameRefused{Reason::kBadChecksum, frame.round, frame.extent, frame.offset_bytes,
                           "checksum"};
  }
  if (refused.has_value()) Refuse(frame.slot, *refused, payload);
  // What was refused counts as received too.
  if (sink != nullptr) sink->OnTaken(frame.length_bytes);
  if (!refused.has_value()) Feed(FrameInput{frame});
}

uint32_t SimEngine::Land(const FrameHeader& frame, const Payload& payload) {
  if (frame.kind == FrameKind::kGradient) {
    const absl::StatusOr<uint32_t> crc = contributions_.Store(fsm_.layout(), frame, payload);
    BALLAST_CHECK(crc.ok());
    if (Is(Mutant::kArrivalOrderSum) && *crc == frame.crc32c) {
      auto& slots = arrivals_[frame.extent];
      if (std::find(slots.begin(), slots.end(), frame.slot) == slots.end()) {
        slots.push_back(frame.slot);
      }
    }
    return *crc;
  }
  const uint32_t crc = payload.Crc32c(IdentityCrc(frame));
  if (crc == frame.crc32c || Is(Mutant::kNoChecksum)) PutInitial(frame, payload);
  return crc;
}

void SimEngine::StrayFrame(const FrameHeader& frame, Payload payload) {
  stray_ = true;
  FrameHeader as_seen = frame;
  const EpochRecord& epoch = fsm_.plan().epoch;
  if (Is(Mutant::kNoFence) && epoch.Find(frame.slot) != nullptr) {
    as_seen.epoch = epoch.epoch;
    as_seen.incarnation = epoch.Find(frame.slot)->incarnation;
    as_seen.crc32c = payload.Crc32c(IdentityCrc(as_seen));
  }
  Frame(as_seen, std::move(payload));
  stray_ = false;
}

void SimEngine::Do(const InitialComplete& effect) {
  if (nvme_ != nullptr) {
    TakeInitial(effect.extent);
  } else {
    checkpointer_.AddInitial(effect.extent);
    PumpCheckpoints();
  }
  if (fsm_.init_missing() != 0) return;
  for (const auto& fetch : std::exchange(after_init_, {})) fetch();
}

void SimEngine::Refuse(uint32_t slot, const FrameRefused& refused, const Payload& payload) {
  const Reason reason = refused.reason;
  if (reason == Reason::kDuplicate) deps_.world->Met(Cover::kDuplicateFrame);
  if (reason == Reason::kOutOfWindow) deps_.world->Met(Cover::kOutOfWindow);
  if (reason == Reason::kBadChecksum) deps_.world->Met(Cover::kBadChecksum);
  if (Is(Mutant::kCountPushes)) AddPushAgain(slot, refused, payload);
  if (stray_) return;
  if (slot < sinks_.size() && sinks_[slot] != nullptr) sinks_[slot]->OnRefused(refused);
}

Ack SimEngine::MakeAck(bool flush) const {
  return {.round = fsm_.round(),
          .window_base = fsm_.window_base(),
          .durable_round = log_->durable_round(),
          .applied_round = fsm_.round() - 1,
          .flush = flush};
}

void SimEngine::Do(const AckSlot& effect) {
  if (sinks_[effect.slot] != nullptr) sinks_[effect.slot]->OnAck(MakeAck(effect.flush));
}

void SimEngine::Do(const MoveWindow&) {
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnAck(MakeAck(false));
  }
}

void SimEngine::Do(const ReduceExtent& effect) {
  absl::StatusOr<std::shared_ptr<ReduceWork>> made = contributions_.MakeWork(fsm_, effect.extent);
  if (!made.ok()) {
    Feed(FailInput{made.status()});
    return;
  }
  std::shared_ptr<ReduceWork> work = *std::move(made);
  if (Is(Mutant::kArrivalOrderSum)) SumInOrderOfArrival(work.get());
  ++reducing_;
  After(deps_.swarm->pace.kernel, EventKind::kKernel, [this, work] { OnReduced(work); });
}

void SimEngine::OnReduced(const std::shared_ptr<ReduceWork>& work) {
  for (size_t tile = 0; tile < work->norms.size(); ++tile) {
    ReduceTile(reduce_kernels_, work.get(), tile);
  }
  const ReducedNorm reduced = FinishReduce(reduce_kernels_, *work);
  --reducing_;
  contributions_.OnReduced(*work);
  has_gradient_.insert(work->extent);
  LogExtent(work->extent, reduced);
  Feed(ReducedInput{work->extent, reduced.norm.sumsq, reduced.norm.nonfinite,
                    reduced.first_nonfinite});
  if (reducing_ != 0 || !Alive()) return;
  for (const auto& adopt : std::exchange(after_reduce_, {})) adopt();
}

// --- Ends ---------------------------------------------------------------------------------------

void SimEngine::Do(const FailSlot& effect) {
  if (sinks_[effect.slot] == nullptr) return;
  sinks_[effect.slot]->OnError(effect.status);
  sinks_[effect.slot] = nullptr;
}

void SimEngine::Do(const FailJob& effect) {
  failure_ = effect.status;
  for (auto& sink : sinks_) {
    if (sink != nullptr) sink->OnError(effect.status);
  }
  End();
}

void SimEngine::Do(const FinishJob&) {
  failure_ = ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                           "all slots have left");
  End();
}

void SimEngine::End() {
  if (ended_) return;
  ended_ = true;
  ReleaseState();
  for (const auto& attach : std::exchange(after_apply_, {})) attach();
}

}  // namespace ballast::sim
