#include "server/round/round_meter.h"

#include <utility>

namespace ballast::server {

RoundMeter::RoundMeter(const Clock* clock, ServerMetrics* metrics, const std::string& run)
    : clock_(clock), metrics_(metrics), job_(metrics == nullptr ? nullptr : metrics->Job(run)) {}

void RoundMeter::Begin() {
  begun_ = clock_->Now();
  open_ = true;
}

void RoundMeter::Decide(const Decision& decision) {
  decided_ = clock_->Now();
  open_ = false;
  if (job_ == nullptr) return;
  job_->grad_norm.Set(decision.grad_norm);
  Counter* const unapplied =
      decision.halted ? &job_->rounds_halted : &job_->rounds_skipped_overflow;
  (decision.applied ? &job_->rounds_committed : unapplied)->Add();
  if (decision.applied) job_->MarkCommit();
}

void RoundMeter::End() const {
  if (metrics_ == nullptr) return;
  metrics_->ObserveRound(RoundPhase::kCollect, prepared_ - begun_);
  metrics_->ObserveRound(RoundPhase::kVote, decided_ - prepared_);
  metrics_->ObserveRound(RoundPhase::kStep, stepped_ - decided_);
}

void RoundMeter::GiveUp() {
  if (std::exchange(open_, false) && job_ != nullptr) job_->rounds_aborted.Add();
}

void RoundMeter::Copy(uint64_t bytes) {
  if (job_ != nullptr) job_->copied_bytes.Add(bytes);
}

}  // namespace ballast::server
