// Supervision: reports to the supervisor of this process (systemd, with Type=notify): whether the
// server replays, serves or ends, why it did not start, and signs of life. They come from the
// executor of the rounds, so a hung executor stops them, and the supervisor ends the process. Comes
// from: Server. Goes to: NotifySocket. Thread safety: thread-safe; nothing is sent on the caller's
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/threads/executor.h"

namespace ballast::server {

struct SupervisionOptions {
  // Sends the lines of one message (sd_notify(3)). Empty: there is no supervisor.
  std::function<void(absl::string_view lines)> say;
  // After a silence of this length the supervisor ends this process; 0: silence means nothing.
  std::chrono::microseconds watchdog{0};
};

// The options requested by `environment`: NOTIFY_SOCKET, and WATCHDOG_USEC unless WATCHDOG_PID is
// not `self`. The first undelivered message is logged. Errors: INVALID_ARGUMENT, naming the
// variable and its valid values.
absl::StatusOr<SupervisionOptions> ReadSupervision(
    const std::map<std::string, std::string>& environment, int64_t self);

// Reports that this process never served, why, and its exit code: one line of STATUS=, of at most 1
// KiB of harmless UTF-8. Blocks as `options.say` does; the server no longer exists, so this is the
// last message. Does nothing without a supervisor.
void SayFailedStart(const SupervisionOptions& options, const absl::Status& why, int exit_code);

class Supervision : public std::enable_shared_from_this<Supervision> {
 public:
  // Without a supervisor all functions below do nothing. `executor` outlives all calls, and drops
  // the next beat when it shuts down.
  static std::shared_ptr<Supervision> Start(SupervisionOptions options, Executor* executor);

  // Counts the extents restored by a replay; any thread adds to it. Lives as long as this.
  std::atomic<uint64_t>* replayed_extents() { return &replayed_extents_; }

  // The server reads its jobs. While replayed_extents() grows, the supervisor allows more time.
  void Replaying();
  // The server serves jobs: it has started.
  void Serving();
  // The server ends. STOPPING=1 is sent only by a server that has started; before that only the
  // status is sent, so that SayFailedStart() has the last word.
  void Stopping();

 private:
  Supervision(SupervisionOptions options, Executor* executor);

  // `turn` changes state owned by the strand and returns the message to send.
  void Post(const char* (*turn)(Supervision*));
  void Beat();
  void Later();

  const SupervisionOptions options_;
  const std::chrono::nanoseconds interval_;
  std::atomic<uint64_t> replayed_extents_{0};
  Strand strand_;
  // Used on the strand.
  bool replaying_ = false;
  bool served_ = false;
  uint64_t seen_extents_ = 0;
};

}  // namespace ballast::server
