// RoundMeter: the times at which the open round reached its phases, by this process' clock, and the
// job's metrics of its rounds.
// Comes from: RoundDriver. Goes to: RoundResult and RoundDone, ServerMetrics, RoundHistory.
// Thread safety: on the job's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/job/decide.h"
#include "common/metrics/metrics.h"
#include "server/round/round_history.h"

namespace ballast::server {

class RoundMeter {
 public:
  // For job `run`. `clock` and `metrics`, which may be null, outlive this.
  RoundMeter(const Clock* clock, ServerMetrics* metrics, const QualifiedName& run);

  // The job's metrics; null without.
  const std::shared_ptr<JobMetrics>& job() const { return job_; }

  // Earlier rounds of the job ended in another process. No file says when, so the time of the last
  // one counts from now, unless a round of this process has ended.
  void Continue();
  // The round's phases, in their order. A trainer begins the round:
  void Begin();
  // Another trainer begins it, or the first one again.
  void Hear(uint32_t slot) { heard_slot_ = static_cast<int>(slot); }
  // After a restart: a round begun earlier is prepared; its phases count from now on.
  void Resume();
  // The trainer was refused, and the round has not begun.
  void TakeBack();
  void Prepare();
  void Decide(const Decision& decision);
  // `took_time`: this server had a share of the step.
  void Step(bool took_time) { stepped_ = took_time ? clock_->Now() : decided_; }
  // Round `round` is over.
  void End(uint64_t round);
  // The open round, if there is one, ends without a decision.
  void GiveUp();

  // A frame's payload was copied.
  void Copy(uint32_t slot, uint64_t bytes);

  // The finished rounds.
  const RoundHistory& history() const { return history_; }
  // How long the phases took.
  uint64_t collect_ns() const { return static_cast<uint64_t>((prepared_ - begun_).count()); }
  uint64_t vote_ns() const { return static_cast<uint64_t>((decided_ - prepared_).count()); }
  uint64_t step_ns() const { return static_cast<uint64_t>((stepped_ - decided_).count()); }

 private:
  // Nothing without metrics.
  void Enter(OpenPhase phase);

  const Clock* const clock_;
  ServerMetrics* const metrics_;
  const std::shared_ptr<JobMetrics> job_;
  OpenPhase phase_ = OpenPhase::kIdle;
  bool open_ = false;  // a trainer has begun the round, and it is not decided
  RoundHistory history_;
  FinishedRound now_;    // the open round, as far as known
  int heard_slot_ = -1;  // sender of the last begin or frame
  std::chrono::nanoseconds begun_{0};
  std::chrono::nanoseconds prepared_{0};
  std::chrono::nanoseconds decided_{0};
  std::chrono::nanoseconds stepped_{0};
};

}  // namespace ballast::server
