#include "server/round/round_meter.h"

#include <utility>

namespace ballast::server {

RoundMeter::RoundMeter(const Clock* clock, ServerMetrics* metrics, const std::string& run)
    : clock_(clock), metrics_(metrics), job_(metrics == nullptr ? nullptr : metrics->Job(run)) {}

void RoundMeter::Begin() {
  begun_ = clock_->Now();
  open_ = true;
  now_.pushed_bytes = 0;
}

void RoundMeter::Resume() {
  open_ = true;
  begun_ = prepared_ = clock_->Now();
}

void RoundMeter::Prepare() {
  prepared_ = clock_->Now();
  now_.last_slot = heard_slot_;
}

void RoundMeter::Decide(const Decision& decision) {
  decided_ = clock_->Now();
  open_ = false;
  now_.grad_norm = decision.grad_norm;
  now_.end = decision.applied  ? RoundEnd::kCommitted
             : decision.halted ? RoundEnd::kHalted
                               : RoundEnd::kSkipped;
  if (job_ == nullptr) return;
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
  if (metrics_ == nullptr) return;
  metrics_->ObserveRound(RoundPhase::kCollect, prepared_ - begun_);
  metrics_->ObserveRound(RoundPhase::kVote, decided_ - prepared_);
  metrics_->ObserveRound(RoundPhase::kStep, stepped_ - decided_);
}

void RoundMeter::GiveUp() {
  if (std::exchange(open_, false) && job_ != nullptr) job_->rounds_aborted.Add();
}

void RoundMeter::Copy(uint32_t slot, uint64_t bytes) {
  Hear(slot);
  now_.pushed_bytes += bytes;
  if (job_ != nullptr) job_->copied_bytes.Add(bytes);
}

}  // namespace ballast::server
