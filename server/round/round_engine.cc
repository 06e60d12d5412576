// Engine: one round, from frames to weights. See engine.h.
// Thread safety: on the job's strand, apart from the tile bodies, which run on workers.
#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "server/round/engine.h"

namespace ballast::server {

RoundResult ResultOf(uint64_t round, const Decision& decision) {
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

// --- Effects: collecting ------------------------------------------------------------------------

// The FSM admits the frame, its bytes land, and the FSM takes it. A frame that is damaged says so
// even where the FSM refuses it for something else, which may be the damage.
void Engine::DoFrame(const FrameHeader& frame, Payload payload) {
  std::optional<FrameRefused> refused = fsm_.RefusalOf(frame);
  const absl::StatusOr<uint32_t> crc =
      refused.has_value() ? payload.Crc32c(IdentityCrc(frame)) : Land(frame, payload);
  if (!crc.ok()) {
    Fail(crc.status());
    return;
  }
  if (*crc != frame.crc32c) {
    if (deps_.metrics != nullptr) deps_.metrics->checksum_errors("push")->Add();
    refused = FrameRefused{Reason::kBadChecksum, frame.round, frame.extent, frame.offset_bytes,
                           DamagedFrameText(frame, *crc)};
  }
  if (refused.has_value()) {
    Refuse(frame.slot, *refused);
    return;
  }
  if (metrics_ != nullptr) metrics_->copied_bytes.Add(frame.length_bytes);
  // Its bytes count as received from here on, so that the acknowledgement that follows covers them.
  payload = Payload();
  Feed(FrameInput{frame});
}

absl::StatusOr<uint32_t> Engine::Land(const FrameHeader& frame, const Payload& payload) {
  BALLAST_CHECK(payload.bytes() == frame.length_bytes);
  if (frame.kind == FrameKind::kGradient) {
    return contributions_.Store(fsm_.layout(), frame, payload);
  }
  const uint32_t crc = payload.Crc32c(IdentityCrc(frame));
  if (crc == frame.crc32c) BALLAST_RETURN_IF_ERROR(PutInitial(frame, payload));
  return crc;
}

void Engine::Do(const InitialComplete& effect) {
  if (nvme_ != nullptr) {
    TakeInitial(effect.extent);
  } else if (fsm_.durable()) {
    checkpointer_.AddInitial(effect.extent);
    PumpCheckpoints();
  }
  if (fsm_.init_missing() != 0) return;
  for (const auto& fetch : std::exchange(after_init_, {})) fetch();
}

void Engine::Refuse(uint32_t slot, const FrameRefused& refused) {
  if (deps_.metrics != nullptr) {
    if (refused.reason == Reason::kDuplicate) deps_.metrics->push_duplicates()->Add();
    if (refused.reason == Reason::kConflict) deps_.metrics->push_conflicts()->Add();
    deps_.metrics->frames_rejected(ReasonName(refused.reason))->Add();
  }
  if (refused.reason == Reason::kConflict) {
    BALLAST_LOG(ERROR, LogField("run", name_), LogField("round", refused.round),
                LogField("slot", slot))
        << refused.message;
  }
  if (slot < sinks_.size() && sinks_[slot] != nullptr) sinks_[slot]->OnRefused(refused);
}

void Engine::Do(const AckSlot& effect) {
  if (sinks_[effect.slot] == nullptr) return;
  BALLAST_FAILPOINT("credit.before_tell");
  sinks_[effect.slot]->OnAck(MakeAck(effect.flush));
  BALLAST_FAILPOINT("credit.after_tell");
}

void Engine::Do(const MoveWindow&) {
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnAck(MakeAck(false));
  }
}

void Engine::Do(const ReduceExtent& effect) {
  absl::StatusOr<std::shared_ptr<ReduceWork>> made = contributions_.MakeWork(fsm_, effect.extent);
  if (!made.ok()) {
    Fail(made.status());
    return;
  }
  std::shared_ptr<ReduceWork> work = *std::move(made);
  ++reducing_;
  auto self = std::static_pointer_cast<Engine>(shared_from_this());
  // Sums are worth all workers. Norms alone only read what one connection brings: one worker keeps
  // up, and is woken once per extent.
  const size_t tiles = work->norms.size();
  const size_t tiles_per_task = work->input.sum != nullptr ? 1 : std::max<size_t>(1, tiles);
  deps_.workers->Submit(
      tiles / tiles_per_task,
      [self, work, tiles_per_task](size_t task) {
        for (size_t i = 0; i < tiles_per_task; ++i) {
          ReduceTile(self->reduce_kernels_, work.get(), task * tiles_per_task + i);
        }
      },
      [self, work] {
        self->Dispatch(
            [self = self.get(), work, reduced = FinishReduce(self->reduce_kernels_, *work)] {
              --self->reducing_;
              self->contributions_.OnReduced(*work);
              self->LogExtent(work->extent, reduced);
              self->Feed(ReducedInput{work->extent, reduced.norm.sumsq, reduced.norm.nonfinite,
                                      reduced.first_nonfinite});
              if (self->reducing_ != 0) return;
              for (const auto& adopt : std::exchange(self->after_reduce_, {})) adopt();
            });
      });
}

// --- Effects: voting and applying ---------------------------------------------------------------

void Engine::Do(const PrepareRound& effect) {
  prepared_at_ = deps_.clock->Now();
  if (checkpointer_.initial_pending() || initial_unflushed_) {
    prepare_waiting_ = effect.record;
  } else {
    PrepareNow(effect.record);
  }
}

void Engine::PrepareNow(const PreparedRecord& record) {
  const auto durable = [](Engine* self, const absl::Status& status) {
    if (!status.ok()) {
      self->StorageFailed(status);
      return;
    }
    self->Feed(DurableInput{});
    for (const auto& seal : std::exchange(self->after_durable_, {})) seal();
  };
  log_->Prepare(record, FromDisk(durable));
}

void Engine::Do(const SendVote& effect) {
  BALLAST_FAILPOINT("vote.before_tell");
  for (const uint32_t server : fsm_.plan().servers) {
    if (server == config_.self) continue;
    deps_.votes->SendVote(job_, effect.epoch, effect.round, server, effect.vote);
  }
  BALLAST_FAILPOINT("vote.after_tell");
}

void Engine::SendResult(uint64_t round, const Decision& decision, uint64_t weight_bytes) {
  decided_at_ = deps_.clock->Now();
  last_decision_ = DecisionRecord{fsm_.plan().epoch.epoch, round, decision};
  log_->AppendDecision(*last_decision_);
  RoundResult result = ResultOf(round, decision);
  result.weight_bytes = weight_bytes;
  result.collect_ns = static_cast<uint64_t>((prepared_at_ - begun_at_).count());
  result.vote_ns = static_cast<uint64_t>((decided_at_ - prepared_at_).count());
  last_result_ = result;
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnResult(result);
  }
  if (metrics_ == nullptr) return;
  metrics_->grad_norm.Set(decision.grad_norm);
  (decision.applied ? metrics_->rounds_committed : metrics_->rounds_skipped_overflow).Add();
  metrics_->MarkCommit();
}

void Engine::Do(const ApplyRound& effect) {
  absl::StatusOr<std::shared_ptr<StepPlan>> made =
      MakeStepPlan(fsm_.layout(), fsm_.PresentTensors(), fsm_.tensor_steps(), effect.decision);
  if (!made.ok()) {
    Feed(FailInput{made.status()});
    return;
  }
  const std::shared_ptr<StepPlan> plan = *std::move(made);
  std::vector<uint32_t> todo;
  // First layers first: the next forward pass needs them first.
  for (auto it = fsm_.owned().rbegin(); it != fsm_.owned().rend(); ++it) {
    if (Touches(*plan, fsm_.layout(), *it)) todo.push_back(*it);
  }
  SendResult(fsm_.round(), effect.decision, WeightBytes(todo));
  weight_overflows_ = 0;
  extents_to_step_ = todo.size();
  stepped_at_ = decided_at_;
  if (todo.empty()) {
    Feed(SteppedInput{});
    return;
  }
  // A tier that does not hold all extents still has those that the last sweep ended with.
  if (nvme_ != nullptr && std::exchange(sweep_backward_, !sweep_backward_)) {
    std::reverse(todo.begin(), todo.end());
  }
  sweep_ = todo;
  sweep_next_ = 0;
  sweep_under_way_ = 0;
  store_.tier()->BeginSweep(std::move(todo));
  PumpSweep(plan);
}

void Engine::PumpSweep(const std::shared_ptr<StepPlan>& plan) {
  while (sweep_next_ < sweep_.size() && sweep_under_way_ < store_.tier()->sweep_depth()) {
    const uint32_t extent = sweep_[sweep_next_++];
    ++sweep_under_way_;
    store_.tier()->Acquire(extent, [this, extent, plan](const absl::Status& status) {
      if (status.ok()) {
        StepExtent(extent, plan);
      } else {
        StorageFailed(status);
      }
    });
  }
}

void Engine::StepExtent(uint32_t extent, const std::shared_ptr<StepPlan>& plan) {
  const Layout& layout = fsm_.layout();
  const absl::StatusOr<BufferRef> weight = WeightBuffer(layout.extents()[extent].dtype);
  if (!weight.ok()) {
    Fail(weight.status());
    return;
  }
  auto self = std::static_pointer_cast<Engine>(shared_from_this());
  if (ahead_.erase(extent) != 0) {  // Stepped before the restart.
    store_.ReadWeights(layout, extent, weight->data());
    Post([this, plan, extent, buffer = *weight] { OnExtentStepped(extent, 0, buffer, plan); });
    return;
  }
  const GradientView grad = contributions_.Gradient(layout, extent);
  const ExtentStep step = StepOf(*plan, layout, extent, grad.data, grad.dtype, weight->data());
  deps_.workers->Submit(
      TileCount(layout, extent),
      [self, plan, extent, step](size_t tile) {
        const uint64_t overflows =
            self->store_.StepTile(self->fsm_.layout(), extent, static_cast<uint32_t>(tile), step);
        if (overflows != 0) plan->overflows.fetch_add(overflows, std::memory_order_relaxed);
      },
      [self, plan, extent, buffer = *weight] {
        self->Dispatch([self = self.get(), plan, extent, buffer] {
          self->OnExtentStepped(extent, self->fsm_.round() + 1, buffer, plan);
        });
      });
}

void Engine::OnExtentStepped(uint32_t extent, uint64_t version, const BufferRef& weight,
                             const std::shared_ptr<StepPlan>& plan) {
  --sweep_under_way_;
  store_.tier()->Release(extent, version);
  contributions_.Release(extent);
  weights_.resize(fsm_.layout().extents().size());
  weights_[extent] = weight;
  const OutPiece piece{
      .kind = FrameKind::kWeight,
      .round = fsm_.round() + 1,
      .extent = extent,
      .dtype = fsm_.layout().extents()[extent].dtype,
      .bytes = {weight.data(), fsm_.layout().ExtentWireBytes(extent), weight.ToShared()}};
  BALLAST_FAILPOINT("weights.before_tell");
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnExtent(piece);
  }
  BALLAST_FAILPOINT("weights.after_tell");
  if (--extents_to_step_ != 0) return PumpSweep(plan);
  stepped_at_ = deps_.clock->Now();
  weight_overflows_ = plan->overflows.load(std::memory_order_relaxed);
  // The FSM may have failed meanwhile; then the input has no effect.
  Feed(SteppedInput{});
}

void Engine::Do(const SkipRound& effect) {
  SendResult(effect.round, effect.decision, 0);
  stepped_at_ = decided_at_;
  weight_overflows_ = 0;
  const Decision& decision = effect.decision;
  if (decision.halted) {
    const UnappliedRound round{effect.round, decision.nonfinite, decision.policy.consecutive_skips,
                               decision.first_nonfinite};
    BALLAST_LOG(ERROR, LogField("run", name_), LogField("round", effect.round))
        << HaltError(fsm_.layout(), fsm_.plan().spec, round).message();
    return;
  }
  BALLAST_LOG(WARN, LogField("run", name_), LogField("round", effect.round))
      << "round skipped: "
      << NonfiniteText(fsm_.layout(), fsm_.plan().spec, decision.first_nonfinite) << "; "
      << decision.nonfinite << " elements are not finite; number "
      << decision.policy.consecutive_skips << " in a row";
}

void Engine::Do(const OpenRound& effect) {
  contributions_.ReleaseAll();
  ahead_.clear();
  const RoundDone done{.round = effect.round,
                       .step_ns = static_cast<uint64_t>((stepped_at_ - decided_at_).count()),
                       .weight_overflows = weight_overflows_};
  last_done_ = done;
  checkpointer_.OnRound();
  BALLAST_FAILPOINT("round.before_tell");
  for (const auto& sink : sinks_) {
    if (sink != nullptr) sink->OnDone(done);
  }
  BALLAST_FAILPOINT("round.after_tell");
  if (deps_.metrics != nullptr) {
    deps_.metrics->ObserveRound(RoundPhase::kCollect, prepared_at_ - begun_at_);
    deps_.metrics->ObserveRound(RoundPhase::kVote, decided_at_ - prepared_at_);
    deps_.metrics->ObserveRound(RoundPhase::kStep, stepped_at_ - decided_at_);
  }
  if (nvme_ != nullptr) EndSweep();
  PumpCheckpoints();
  StartCapture();
  for (const auto& attach : std::exchange(after_apply_, {})) attach();
}

absl::StatusOr<std::vector<BufferPool>> MakeWeightPools(const Layout& layout, size_t owned) {
  std::vector<BufferPool> pools;
  for (const size_t width : {size_t{4}, size_t{2}}) {
    // One set on its way out, one being written. Older ones are back: no slot begins a round before
    // it has received all of the last one's weights.
    BALLAST_ASSIGN_OR_RETURN(BufferPool pool,
                             BufferPool::Create({.buffer_bytes = layout.extent_elements() * width,
                                                 .max_buffers = 2 * owned + 8}));
    pools.push_back(std::move(pool));
  }
  return pools;
}

absl::StatusOr<BufferRef> Engine::WeightBuffer(DType dtype) {
  if (weight_pools_.empty()) {
    BALLAST_ASSIGN_OR_RETURN(weight_pools_, MakeWeightPools(fsm_.layout(), fsm_.owned().size()));
  }
  return weight_pools_[dtype == DType::kF32 ? 0 : 1].Acquire();
}

// --- Effects: ends ------------------------------------------------------------------------------

void Engine::Do(const FailSlot& effect) {
  if (sinks_[effect.slot] == nullptr) return;
  sinks_[effect.slot]->OnError(effect.status);
  sinks_[effect.slot] = nullptr;
}

// That a server is stopped, or that everybody has left, is no failure.
void Engine::LogEnd(const absl::Status& why) const {
  const LogField run("run", name_), round("round", fsm_.round());
  const Reason reason = ReasonOf(why);
  if (reason != Reason::kShuttingDown && reason != Reason::kJobFinished) {
    BALLAST_LOG(ERROR, run, round) << "job failed: " << why.message();
  } else if (fsm_.durable() && reason == Reason::kShuttingDown) {
    BALLAST_LOG(INFO, run, round) << "job waits for the next start of this server";
  } else {
    BALLAST_LOG(INFO, run, round) << "job ended: " << why.message();
  }
}

void Engine::Do(const FailJob& effect) {
  failure_ = effect.status;
  LogEnd(effect.status);
  for (auto& sink : sinks_) {
    if (sink != nullptr) sink->OnError(effect.status);
  }
  End();
}

void Engine::Do(const FinishJob&) {
  failure_ = ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                           absl::StrCat("job \"", name_, "\" is finished; all slots have left"),
                           {.job = name_, .round = fsm_.round()});
  BALLAST_LOG(INFO, LogField("run", name_), LogField("round", fsm_.round())) << "job finished";
  End();
}

void Engine::End() {
  if (ended_) return;
  ended_ = true;
  deps_.votes->DropVotes(job_);
  // Its files may be opened again once the end is told, so nothing may write to them any more. This
  // waits for the disk; the job has nothing else to do.
  if (nvme_ != nullptr) DisconnectTier();
  EndCapture();
  log_ = std::make_unique<NullRoundLog>();
  // They get the failure.
  for (const auto& seal : std::exchange(after_durable_, {})) seal();
  for (const auto& attach : std::exchange(after_apply_, {})) attach();
  for (const Adoption& adoption : std::exchange(adopting_, {})) adoption.done(failure_);
  if (on_end_) std::exchange(on_end_, nullptr)(failure_, fsm_.round());
}

}  // namespace ballast::server
