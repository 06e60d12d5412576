// Supervision: what the supervisor of this process (systemd, by Type=notify) hears of the server:
// whether it replays, serves or ends, why it did not start, and signs of life. They come from the
// executor on which the rounds run, so an executor that hangs stops them, and the supervisor ends
// the process. Comes from: Server. Goes to: NotifySocket. Thread safety: thread-safe; nothing is
// sent on the caller's thread.
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
#include "common/base/executor.h"

namespace ballast::server {

struct SupervisionOptions {
  // Takes the lines of one message (sd_notify(3)). Empty: there is no supervisor.
  std::function<void(absl::string_view lines)> say;
  // A silence of this length is the end of this process; 0: silence means nothing.
  std::chrono::microseconds watchdog{0};
};

// What `environment` asks for: NOTIFY_SOCKET, and WATCHDOG_USEC unless WATCHDOG_PID is not `self`.
// The first message that is not heard gives a line in the log. Errors: INVALID_ARGUMENT, naming the
// variable and what it must be.
absl::StatusOr<SupervisionOptions> ReadSupervision(
    const std::map<std::string, std::string>& environment, int64_t self);

// Says that this process never served, why, and by which exit code it ends: one line of STATUS=, of
// at most 1 KiB of harmless UTF-8. Blocks as `options.say` does; the server is gone by then, so
// nothing else is said after it. Without a supervisor it does nothing.
void SayFailedStart(const SupervisionOptions& options, const absl::Status& why, int exit_code);

class Supervision : public std::enable_shared_from_this<Supervision> {
 public:
  // Without a supervisor all that follows does nothing. `executor` outlives all calls, and drops
  // the next beat when it shuts down.
  static std::shared_ptr<Supervision> Start(SupervisionOptions options, Executor* executor);

  // Counts the extents that a replay has brought back; any thread adds to it. Lives as long as
  // this.
  std::atomic<uint64_t>* replayed_extents() { return &replayed_extents_; }

  // The server reads its jobs. While replayed_extents() grows, the supervisor waits for longer.
  void Replaying();
  // The server serves jobs: it has started.
  void Serving();
  // The server ends. STOPPING=1 is for a server that has started; before that there is only the
  // status, so that SayFailedStart() has the last word.
  void Stopping();

 private:
  Supervision(SupervisionOptions options, Executor* executor);

  // `turn` changes what the strand owns and returns what is to be said.
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
