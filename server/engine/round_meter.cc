#include "server/engine/round_meter.h"

#include <utility>

namespace ballast::server {

RoundMeter::RoundMeter(const Clock* clock, ServerMetrics* metrics, const QualifiedName& run)
    : clock_(clock), metrics_(metrics), job_(metrics == nullptr ? nullptr : metrics->Job(run)) {
  Enter(OpenPhase::kIdle);
}

void RoundMeter::Begin() {
  begun_ = clock_->Now();
  open_ = true;
  now_.pushed_bytes = 0;
  Enter(OpenPhase::kCollect);
}

void RoundMeter::Resume() {
  open_ = true;
  begun_ = prepared_ = clock_->Now();
  Enter(OpenPhase::kVote);
}

void RoundMeter::TakeBack() {
  open_ = false;
  Enter(OpenPhase::kIdle);
}

void RoundMeter::Prepare() {
  prepared_ = clock_->Now();
  now_.last_slot = heard_slot_;
  Enter(OpenPhase::kVote);
}

void RoundMeter::Enter(OpenPhase phase) {
  if (job_ == nullptr) return;
  job_->open_phase[static_cast<size_t>(phase_)].Set(0);
  job_->open_phase[static_cast<size_t>(phase)].Set(1);
  phase_ = phase;
}

void RoundMeter::Continue() {
  if (job_ != nullptr && job_->last_round_commit_timestamp_s.value() == 0) job_->MarkCommit();
}

void RoundMeter::Decide(const Decision& decision) {
  decided_ = clock_->Now();
  open_ = false;
  now_.grad_norm = decision.grad_norm;
  now_.end = decision.applied  ? RoundEnd::kCommitted
             : decision.halted ? RoundEnd::kHalted
                               : RoundEnd::kSkipped;
  Enter(OpenPhase::kStep);
  if (job_ == nullptr) return;
  job_->loss_scale.Set(decision.policy.loss_scale);
  job_->grad_norm.Set(decision.grad_norm);
  Counter* const unapplied =
      decision.halted ? &job_->rounds_halted : &job_->rounds_skipped_overflow;
  (decision.applied ? &job_->rounds_committed : unapplied)->Add();
  if (decision.applied) job_->MarkCommit();
}

void RoundMeter::End(uint64_t round) {
  now_.round = round;
  now_.ended_ns = static_cast<uint64_t>(clock_->Now().count());
  now_.collect_ns = collect_ns();
  now_.vote_ns = vote_ns();
  now_.step_ns = step_ns();
  history_.Add(std::exchange(now_, {}));
  heard_slot_ = -1;
  Enter(OpenPhase::kIdle);
  if (metrics_ == nullptr) return;
  metrics_->ObserveRound(RoundPhase::kCollect, prepared_ - begun_);
  metrics_->ObserveRound(RoundPhase::kVote, decided_ - prepared_);
  metrics_->ObserveRound(RoundPhase::kStep, stepped_ - decided_);
}

void RoundMeter::GiveUp() {
  Enter(OpenPhase::kIdle);
  if (std::exchange(open_, false) && job_ != nullptr) job_->rounds_aborted.Add();
}

void RoundMeter::Copy(uint32_t slot, uint64_t bytes) {
  Hear(slot);
  now_.pushed_bytes += bytes;
  if (job_ != nullptr) job_->copied_bytes.Add(bytes);
}

}  // namespace ballast::server
