// RoundMeter: when the open round reached its phases, by this process' clock, and what the job's
// metrics say of its rounds.
// Comes from: RoundDriver. Goes to: RoundResult and RoundDone, ServerMetrics.
// Thread safety: on the job's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/job/decide.h"
#include "common/metrics/metrics.h"

namespace ballast::server {

class RoundMeter {
 public:
  // Of job `run`. `clock` and `metrics`, which may be null, outlive this.
  RoundMeter(const Clock* clock, ServerMetrics* metrics, const std::string& run);

  // The job's metrics; null without.
  const std::shared_ptr<JobMetrics>& job() const { return job_; }

  // The round's phases, in their order. A trainer begins the round:
  void Begin();
  // After a restart: a round that was begun before is prepared.
  void Resume() { open_ = true; }
  // The trainer was refused, and the round has not begun.
  void TakeBack() { open_ = false; }
  void Prepare() { prepared_ = clock_->Now(); }
  void Decide(const Decision& decision);
  // `took_time`: this server had a share of the step.
  void Step(bool took_time) { stepped_ = took_time ? clock_->Now() : decided_; }
  void End() const;
  // The open round, if there is one, ends without a decision.
  void GiveUp();

  // A frame's payload was copied.
  void Copy(uint64_t bytes);

  // How long the phases took.
  uint64_t collect_ns() const { return static_cast<uint64_t>((prepared_ - begun_).count()); }
  uint64_t vote_ns() const { return static_cast<uint64_t>((decided_ - prepared_).count()); }
  uint64_t step_ns() const { return static_cast<uint64_t>((stepped_ - decided_).count()); }

 private:
  const Clock* const clock_;
  ServerMetrics* const metrics_;
  const std::shared_ptr<JobMetrics> job_;
  bool open_ = false;  // a trainer has begun the round, and it is not decided
  std::chrono::nanoseconds begun_{0};
  std::chrono::nanoseconds prepared_{0};
  std::chrono::nanoseconds decided_{0};
  std::chrono::nanoseconds stepped_{0};
};

}  // namespace ballast::server
