// Shared by calls to a job's home: retryable errors, the limit of redirects, and a wait that the
// caller can interrupt.
// Comes from: HomeSearch, HomeRendezvous, Admin. Goes to: their loops. Thread safety: pure
// functions; SleepPolling blocks the calling thread and calls `poll` on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::client {

// Another server than the home names it; more names in a row than this are a circle.
inline constexpr int kMaxRedirects = 4;

// Whether the server is unreachable, starting or shutting down.
inline bool IsAway(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable) return false;
  const Reason reason = ReasonOf(status);
  return reason == Reason::kUnspecified || reason == Reason::kUnreachable ||
         reason == Reason::kShuttingDown || reason == Reason::kRecovering;
}

inline void SleepFor(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

// Waits for `time` in `sleep`, calling `poll` about ten times a second and once at the end. Its
// first error ends the wait and is returned.
inline absl::Status SleepPolling(
    std::chrono::milliseconds time, const std::function<absl::Status()>& poll,
    const std::function<void(std::chrono::milliseconds)>& sleep = SleepFor) {
  constexpr std::chrono::milliseconds kPoll{100};
  for (; time > std::chrono::milliseconds(0); time -= kPoll) {
    BALLAST_RETURN_IF_ERROR(poll());
    sleep(std::min(time, kPoll));
  }
  return poll();
}

}  // namespace ballast::client
