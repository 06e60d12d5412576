// SimEngine: votes, decisions and steps. See engine.h; the mirror of the second half of
// RoundDriver and Sweep of server/round. Thread safety: one thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/engine.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

// --- Voting and applying ------------------------------------------------------------------------

void SimEngine::Do(const PrepareRound& effect) {
  if ((checkpointer_.initial_pending() || initial_unflushed_) && !Is(Mutant::kInitNotDurable)) {
    prepare_waiting_ = effect.record;
  } else {
    PrepareNow(effect.record);
  }
}

void SimEngine::PrepareNow(const PreparedRecord& record) {
  log_->Prepare(record, OnStrand([this](const absl::Status& status) {
                  if (!status.ok()) {
                    deps_.storage_failed(status);
                    return;
                  }
                  Feed(DurableInput{});
                  if (!Alive()) return;
                  for (const auto& seal : std::exchange(after_durable_, {})) seal();
                }));
}

void SimEngine::Do(const SendVote& effect) {
  if (deps_.world->tracing()) {
    deps_.world->Trace(deps_.node, absl::StrCat("votes on round ", effect.round));
  }
  const bool power = fsm_.plan().spec.durability == Durability::kPower;
  deps_.oracle->OnVote(deps_.server_id, effect.epoch, effect.round, effect.vote,
                       !power || deps_.disk->PrepareIsDurable(effect.round));
  for (const uint32_t server : fsm_.plan().servers) {
    if (server == deps_.server_id) continue;
    deps_.send_vote(effect.epoch, effect.round, server, effect.vote);
  }
  if (Is(Mutant::kDecideEarly)) InventVotes(effect);
}

VoteAnswer SimEngine::PeerVote(uint32_t epoch, uint64_t round, const Vote& vote) {
  Feed(VoteInput{epoch, round, vote});
  if (!Alive() || (Is(Mutant::kForgetLastVote) && round != fsm_.round())) return std::nullopt;
  return fsm_.AnswerVote(round, vote.server);
}

void SimEngine::VoteRefused(uint64_t round, const absl::Status& why) {
  if (fsm_.phase() == Phase::kPrepared && fsm_.round() == round) Feed(FailInput{why});
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
  if (IsUpload(plan->upload)) deps_.world->Met(Cover::kUpload);
  if (IsStatePlane(plan->upload)) deps_.world->Met(Cover::kStatePlane);
  if (todo.size() < fsm_.owned().size()) deps_.world->Met(Cover::kUntouchedExtent);
  older_weights_ = weights_;
  SendResult(fsm_.round(), effect.decision, WeightBytes(todo));
  weight_overflows_ = 0;
  extents_to_step_ = todo.size();
  if (todo.empty()) {
    Feed(SteppedInput{});
    return;
  }
  if (nvme_ != nullptr && std::exchange(sweep_backward_, !sweep_backward_)) {
    std::reverse(todo.begin(), todo.end());
  }
  sweep_ = todo;
  sweep_next_ = 0;
  sweep_under_way_ = 0;
  store_.tier()->BeginSweep(std::move(todo));
  PumpSweep(plan);
}

void SimEngine::StepExtent(uint32_t extent, const std::shared_ptr<StepPlan>& plan) {
  const Layout& layout = fsm_.layout();
  auto weight = std::make_shared<std::vector<char>>(layout.ExtentWireBytes(extent));
  if (ahead_.erase(extent) != 0 && !Is(Mutant::kApplyTwice)) {  // Stepped before the restart.
    store_.ReadWeights(layout, extent, weight->data());
    After(0, EventKind::kStrand,
          [this, plan, extent, weight] { OnExtentStepped(extent, 0, weight, plan); });
    return;
  }
  if (has_gradient_.count(extent) == 0) {
    deps_.world->Red(absl::StrCat("server ", deps_.server_id, " has no gradient of extent ", extent,
                                  " for round ", fsm_.round()));
    return;
  }
  const GradientView grad = contributions_.Gradient(layout, extent);
  ExtentStep step = StepOf(*plan, layout, extent, grad.data, grad.dtype, weight->data());
  if (Is(Mutant::kUploadIgnored)) step.upload = UploadPlane::kNone;
  if (Is(Mutant::kPlaneIgnored) && IsStatePlane(step.upload)) step.upload = UploadPlane::kNone;
  After(deps_.swarm->pace.kernel, EventKind::kKernel, [this, plan, extent, step, weight] {
    for (uint32_t tile = 0; tile < TileCount(fsm_.layout(), extent); ++tile) {
      plan->overflows += store_.StepTile(fsm_.layout(), extent, tile, step);
    }
    OnExtentStepped(extent, fsm_.round() + 1, weight, plan);
  });
}

void SimEngine::OnExtentStepped(uint32_t extent, uint64_t version,
                                const std::shared_ptr<const std::vector<char>>& weight,
                                const std::shared_ptr<StepPlan>& plan) {
  --sweep_under_way_;
  store_.tier()->Release(extent, version);
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
  if (--extents_to_step_ != 0) return PumpSweep(plan);
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
  if (nvme_ != nullptr) EndSweep();
  PumpCheckpoints();
  StartCapture();
  for (const auto& attach : std::exchange(after_apply_, {})) attach();
}

}  // namespace ballast::sim
