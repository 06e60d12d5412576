// Decides when to retry an unreachable state server, when to report it, and when to give up. Also
// for attaching again at the job's home after a change of epoch.
// Pure: events and the time come in, decisions go out; no clock, no chance, no I/O.
// Comes from: ServerLink and EpochTransition (streams that end, Welcomes, tries). Goes to:
// SessionCore and EpochTransition, which act. Thread safety: none; lives under the session's lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ballast::client {

// Whether another try may help after a link of a durable job has ended with `status`: the server is
// not there, or not ready yet. The transport makes a status without a detail, OK included. A server
// that had given up the trainer in `own_slot` takes that trainer back. A server that answers
// FUTURE_EPOCH is about to follow the home into the job's epoch.
bool IsNotYet(const absl::Status& status, uint32_t own_slot);

// The tries to reach one server.
class Reconnect {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;

  struct Limits {
    Duration first_backoff = std::chrono::milliseconds(100);  // doubled after each failed try
    Duration max_backoff = std::chrono::seconds(1);
    Duration timeout = std::chrono::minutes(10);
    Duration report_every = std::chrono::seconds(5);
  };

  enum class Action {
    kNothing,
    kOpen,    // open a link now; OnLost or OnBack follows
    kReport,  // report that the server is still away
    kGiveUp,  // the timeout has passed
  };

  explicit Reconnect(const Limits& limits) : limits_(limits), backoff_(limits.first_backoff) {}

  // The server went away, or a try to reach it failed. `recovering`: the server answered and will
  // be ready soon, so the next try comes after first_backoff, whatever the number of tries so far.
  void OnLost(absl::string_view why, Time now, bool recovering = false);
  // The server has answered. When a server is lost again within max_backoff, its backoff continues
  // from the last value.
  void OnBack(Time now);

  // The action due at `now`. Call again until kNothing; kOpen and kReport count as done.
  Action Next(Time now);
  // When Next has its next action; Time::max() while the server is reachable.
  Time due() const;

  bool away() const { return away_; }
  Time since() const { return since_; }  // of being away
  Duration timeout() const { return limits_.timeout; }
  const std::string& last_error() const { return last_error_; }

 private:
  const Limits limits_;
  bool away_ = false;
  bool trying_ = false;  // a link is open, and its server has not answered yet
  Duration backoff_;     // before the next try
  Time since_;
  Time next_try_;
  Time next_report_;
  Time back_at_ = Time::min();
  std::string last_error_;
};

// Time in which a round lacked at least one server or trainer.
class PauseMeter {
 public:
  using Time = Reconnect::Time;
  using Duration = Reconnect::Duration;

  // A server went away; an absent one is back.
  void OnLost(Time now);
  void OnBack(Time now);
  // The job's transition into its next epoch counts as an absent server, but not as a reconnect.
  void OnPassed(Time now);
  // A round begins: time counts from here.
  void StartRound(Time now);
  // A round is over: reconnects count from here.
  void EndRound() { reconnects_ = 0; }

  Duration paused(Time now) const;
  uint32_t reconnects() const { return reconnects_; }

 private:
  uint32_t away_ = 0;  // servers, and a transition
  uint32_t reconnects_ = 0;
  Time since_;  // while away_ > 0: start of the time not in paused_ yet
  Duration paused_{0};
};

}  // namespace ballast::client
