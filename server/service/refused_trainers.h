// RefusedTrainers: a line in the log for each trainer that a server refuses, because the trainer's
// own log may be on an unreachable host. Comes from: the control service. Goes to: the log. Thread
// safety: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/sync.h"

namespace ballast::server {

class RefusedTrainers {
 public:
  // Most lines in an interval; the first line of the next says how many were left out.
  static constexpr int kLinesMax = 8;
  static constexpr std::chrono::seconds kInterval{10};
  // Longest logged part of a name and of a reason.
  static constexpr size_t kNameBytesMax = 128;
  static constexpr size_t kTextBytesMax = 1024;

  explicit RefusedTrainers(const Clock* clock) : clock_(clock) {}

  // `call`: "attach" or "extend". `peer`: the trainer's address. `why` is not OK; UNAVAILABLE and
  // NOT_HOME, after which trainers retry by themselves, are not logged.
  void Add(const std::string& call, const std::string& job, const std::string& peer,
           const absl::Status& why);

 private:
  // Number of lines left out since the last one; -1: this one is left out, too.
  int64_t Allow();

  const Clock* const clock_;
  Mutex mu_;
  std::chrono::nanoseconds begin_ ABSL_GUARDED_BY(mu_){0};  // of the interval
  int lines_ ABSL_GUARDED_BY(mu_) = 0;                      // in it
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ballast::server
