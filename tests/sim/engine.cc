#include "tests/sim/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

server::RoundResult ResultOf(uint64_t round, const Decision& decision) {
  return {.round = round,
          .applied = decision.applied,
          .grad_norm = decision.grad_norm,
          .clip_coef = decision.clip_coef,
          .loss_scale = decision.policy.loss_scale,
          .opt_step = decision.policy.opt_step,
          .nonfinite = decision.nonfinite,
          .halted = decision.halted,
          .consecutive_skips = decision.policy.consecutive_skips,
          .first_nonfinite = decision.first_nonfinite};
}

SimEngine::SimEngine(const SimEngineDeps& deps, RoundFsm fsm, Contributions contributions,
                     ExtentStore store, Checkpointer checkpointer, std::unique_ptr<SimRoundLog> log)
    : deps_(deps),
      life_(deps.world->Life(deps.node)),
      step_kernels_(optim::Kernels(simd::DetectIsa())),
      reduce_kernels_(reduce::Kernels(simd::DetectIsa())),
      fsm_(std::move(fsm)),
      contributions_(std::move(contributions)),
      store_(std::move(store)),
      checkpointer_(std::move(checkpointer)),
      log_(std::move(log)),
      sinks_(fsm_.plan().epoch.seats()),
      seats_(fsm_.plan().epoch.seats()) {}

absl::StatusOr<std::unique_ptr<SimEngine>> SimEngine::Make(const JobPlan& plan,
                                                           const SimEngineDeps& deps,
                                                           const StorageOptions& options,
                                                           std::unique_ptr<JobStorage> storage) {
  const simd::Isa isa = simd::DetectIsa();
  const Shape& shape = deps.swarm->shape;
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  RoundFsm fsm(plan, layout, deps.server_id, shape.chunk_bytes, deps.window_extents);
  ExtentStore store(MakeDramTier(plan.spec.tile_elements), &optim::Kernels(isa));
  BALLAST_RETURN_IF_ERROR(store.Add(layout, fsm.owned()));
  BALLAST_ASSIGN_OR_RETURN(
      Contributions contributions,
      Contributions::Create(layout, fsm.owned().size(), plan.epoch, deps.window_extents));
  BALLAST_ASSIGN_OR_RETURN(Recovered recovered,
                           Recover(plan, layout, fsm.owned(), storage.get(), &store));
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
  auto log = std::make_unique<SimRoundLog>(
      SimRoundLog::Deps{deps.world, &deps.swarm->pace, deps.disk, deps.node, deps.mutant},
      std::move(storage), options.shapes, durable, plan.epoch.start_round);
  BALLAST_ASSIGN_OR_RETURN(
      Checkpointer checkpointer,
      Checkpointer::Create(layout, fsm.owned(), recovered.slot_versions, shape.checkpoint_rounds));
  auto engine =
      std::make_unique<SimEngine>(deps, std::move(fsm), std::move(contributions), std::move(store),
                                  std::move(checkpointer), std::move(log));
  engine->Resume(std::move(recovered));
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

void SimEngine::Frame(const FrameInfo& info, Payload payload) {
  payload_ = &payload;
  taken_ = false;
  const SinkPtr sink = info.slot < sinks_.size() ? sinks_[info.slot] : nullptr;
  DoFrame(info);
  payload_ = nullptr;
  // What was refused counts as received too.
  if (!taken_ && !stray_ && sink != nullptr) sink->OnTaken(info.length_bytes);
}

void SimEngine::StrayFrame(const FrameInfo& info, Payload payload) {
  stray_ = true;
  FrameInfo as_seen = info;
  const EpochRecord& epoch = fsm_.plan().epoch;
  if (Is(Mutant::kNoFence) && epoch.Find(info.slot) != nullptr) {
    as_seen.epoch = epoch.epoch;
    as_seen.incarnation = epoch.Find(info.slot)->incarnation;
  }
  Frame(as_seen, std::move(payload));
  stray_ = false;
}

void SimEngine::DoFrame(const FrameInfo& info) {
  const absl::StatusOr<uint32_t> crc =
      fsm_.WouldStore(info) ? contributions_.Store(fsm_.layout(), info, *payload_)
                            : absl::StatusOr<uint32_t>(payload_->Crc32c(info.crc_seed));
  if (!crc.ok()) {
    Feed(FailInput{crc.status()});
  } else if (*crc == info.crc32c || Is(Mutant::kNoChecksum)) {
    Feed(FrameInput{info});
  } else {
    Do(RefuseFrame{info.slot,
                   {Reason::kBadChecksum, info.round, info.extent, info.offset_bytes, "checksum"}});
  }
}

void SimEngine::Do(const StoreFrame& effect) {
  const FrameInfo& info = effect.info;
  if (info.kind == FrameKind::kInit) {
    const auto width = static_cast<uint32_t>(DTypeBytes(info.dtype));
    const std::string bytes = payload_->ToString();
    store_.WriteMaster(fsm_.layout(), info.extent, info.offset_bytes / width, bytes.data(),
                       info.length_bytes / width);
    if (info.extent < weights_.size()) weights_[info.extent].reset();
    if (fsm_.InitComplete(info.extent)) {
      checkpointer_.AddInitial(info.extent);
      PumpCheckpoints();
    }
    if (fsm_.init_missing() == 0) {
      for (const auto& fetch : std::exchange(after_init_, {})) fetch();
    }
  } else if (Is(Mutant::kArrivalOrderSum)) {
    auto& slots = arrivals_[info.extent];
    if (std::find(slots.begin(), slots.end(), info.slot) == slots.end()) slots.push_back(info.slot);
  }
  taken_ = true;
  if (!stray_ && sinks_[info.slot] != nullptr) sinks_[info.slot]->OnTaken(info.length_bytes);
}

void SimEngine::Do(const RefuseFrame& effect) {
  const Reason reason = effect.refused.reason;
  if (reason == Reason::kDuplicate) deps_.world->Met(Cover::kDuplicateFrame);
  if (reason == Reason::kOutOfWindow) deps_.world->Met(Cover::kOutOfWindow);
  if (reason == Reason::kBadChecksum) deps_.world->Met(Cover::kBadChecksum);
  if (Is(Mutant::kCountPushes)) AddPushAgain(effect);
  if (stray_) return;
  if (effect.slot < sinks_.size() && sinks_[effect.slot] != nullptr) {
    sinks_[effect.slot]->OnRefused(effect.refused);
  }
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

// --- Voting and applying ------------------------------------------------------------------------

void SimEngine::Do(const PrepareRound& effect) {
  if (checkpointer_.initial_pending() && !Is(Mutant::kInitNotDurable)) {
    prepare_waiting_ = effect.record;
  } else {
    PrepareNow(effect.record);
  }
}

void SimEngine::PrepareNow(const PreparedRecord& record) {
  log_->Prepare(record, [this](const absl::Status& status) {
    if (!status.ok()) {
      deps_.storage_failed(status);
      return;
    }
    Feed(DurableInput{});
    if (!Alive()) return;
    for (const auto& seal : std::exchange(after_durable_, {})) seal();
  });
}

void SimEngine::Do(const SendVote& effect) {
  if (deps_.world->tracing()) {
    deps_.world->Trace(deps_.node, absl::StrCat("votes on round ", effect.round));
  }
  const bool power = fsm_.plan().spec.durability == Durability::kPower;
  deps_.oracle->OnVote(deps_.server_id, effect.epoch, effect.round, effect.vote,
                       !power || log_->PrepareIsDurable());
  for (const uint32_t server : fsm_.plan().servers) {
    if (server == deps_.server_id) continue;
    deps_.send_vote(effect.epoch, effect.round, server, effect.vote);
  }
  if (Is(Mutant::kDecideEarly)) InventVotes(effect);
}

std::optional<Vote> SimEngine::PeerVote(uint32_t epoch, uint64_t round, const Vote& vote) {
  Feed(VoteInput{epoch, round, vote});
  if (!Alive() || (Is(Mutant::kForgetLastVote) && round != fsm_.round())) return std::nullopt;
  return fsm_.OwnVoteOn(round);
}

void SimEngine::SendResult(uint64_t round, const Decision& decision, uint64_t weight_bytes) {
  deps_.oracle->OnDecision(deps_.server_id, fsm_.plan().epoch.epoch, round, decision);
  if (deps_.world->tracing()) {
    deps_.world->Trace(deps_.node, absl::StrCat("decides round ", round,
                                                decision.applied ? ": applied" : ": skipped"));
  }
  log_->AppendDecision({fsm_.plan().epoch.epoch, round, decision});
  RoundResult result = ResultOf(round, decision);
  result.weight_bytes = weight_bytes;
  last_result_ = result;
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnResult(result);
  }
}

void SimEngine::Do(const ApplyRound& effect) {
  absl::StatusOr<std::shared_ptr<StepPlan>> made =
      MakeStepPlan(fsm_.layout(), fsm_.PresentTensors(), fsm_.tensor_steps(), effect.decision);
  if (!made.ok()) {
    Feed(FailInput{made.status()});
    return;
  }
  const std::shared_ptr<StepPlan> plan = *std::move(made);
  std::vector<uint32_t> todo;
  for (auto it = fsm_.owned().rbegin(); it != fsm_.owned().rend(); ++it) {
    if (Touches(*plan, fsm_.layout(), *it)) todo.push_back(*it);
  }
  if (plan->upload) deps_.world->Met(Cover::kUpload);
  if (todo.size() < fsm_.owned().size()) deps_.world->Met(Cover::kUntouchedExtent);
  older_weights_ = weights_;
  SendResult(fsm_.round(), effect.decision, WeightBytes(todo));
  weight_overflows_ = 0;
  extents_to_step_ = todo.size();
  if (todo.empty()) {
    Feed(SteppedInput{});
    return;
  }
  for (const uint32_t extent : todo) StepExtent(extent, plan);
}

void SimEngine::StepExtent(uint32_t extent, const std::shared_ptr<StepPlan>& plan) {
  const Layout& layout = fsm_.layout();
  auto weight = std::make_shared<std::vector<char>>(layout.ExtentWireBytes(extent));
  if (ahead_.erase(extent) != 0 && !Is(Mutant::kApplyTwice)) {  // Stepped before the restart.
    store_.ReadWeights(layout, extent, weight->data());
    After(0, EventKind::kStrand,
          [this, plan, extent, weight] { OnExtentStepped(extent, weight, plan); });
    return;
  }
  if (has_gradient_.count(extent) == 0) {
    deps_.world->Red(absl::StrCat("server ", deps_.server_id, " has no gradient of extent ", extent,
                                  " for round ", fsm_.round()));
    return;
  }
  const GradientView grad = contributions_.Gradient(layout, extent);
  ExtentStep step = StepOf(*plan, layout, extent, grad.data, grad.dtype, weight->data());
  if (Is(Mutant::kUploadIgnored)) step.upload = false;
  After(deps_.swarm->pace.kernel, EventKind::kKernel, [this, plan, extent, step, weight] {
    for (uint32_t tile = 0; tile < TileCount(fsm_.layout(), extent); ++tile) {
      plan->overflows += store_.StepTile(fsm_.layout(), extent, tile, step);
    }
    OnExtentStepped(extent, weight, plan);
  });
}

void SimEngine::OnExtentStepped(uint32_t extent, std::shared_ptr<const std::vector<char>> weight,
                                const std::shared_ptr<StepPlan>& plan) {
  contributions_.Release(extent);
  weights_.resize(fsm_.layout().extents().size());
  weights_[extent] = weight;
  const OutPiece piece{.kind = FrameKind::kWeight,
                       .round = fsm_.round() + 1,
                       .extent = extent,
                       .dtype = fsm_.layout().extents()[extent].dtype,
                       .bytes = {weight->data(), weight->size(), weight}};
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnExtent(piece);
  }
  if (Is(Mutant::kImageWhileApplying)) PumpCheckpoints();
  if (--extents_to_step_ != 0) return;
  weight_overflows_ = plan->overflows;
  Feed(SteppedInput{});
}

void SimEngine::Do(const SkipRound& effect) {
  deps_.world->Met(Cover::kSkippedRound);
  SendResult(effect.round, effect.decision, 0);
  weight_overflows_ = 0;
}

void SimEngine::Do(const OpenRound& effect) {
  contributions_.ReleaseAll();
  arrivals_.clear();
  has_gradient_.clear();
  ahead_.clear();
  deps_.oracle->OnApplied(deps_.server_id, effect.round);
  last_done_ = RoundDone{.round = effect.round, .weight_overflows = weight_overflows_};
  checkpointer_.OnRound();
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnDone(*last_done_);
  }
  PumpCheckpoints();
  for (const auto& attach : std::exchange(after_apply_, {})) attach();
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
  for (const auto& attach : std::exchange(after_apply_, {})) attach();
}

}  // namespace ballast::sim
