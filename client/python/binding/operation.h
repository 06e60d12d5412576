// A blocking client call on its own thread, so that Python can wait for it in slices and run its
// signal handlers (Ctrl-C) in between.
// Comes from: module.cc, admin.cc, rendezvous.cc. Goes to: ballast/client.h, ballast/admin.h.
// Thread safety: Wait and the results are for one thread at a time; Stop for any; the body runs on
// its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/admin.h"
#include "ballast/client.h"
#include "common/base/sync.h"

namespace ballast::python {

// The result of a body; each kind of call fills its own field or none.
struct OperationResult {
  std::shared_ptr<client::Client> client;                  // attach
  std::vector<uint64_t> tensor_step;                       // fetch_state
  uint64_t round = 0;                                      // snapshot
  std::optional<std::vector<client::DurableJob>> jobs;     // jobs, restore
  std::optional<std::vector<client::Snapshot>> snapshots;  // snapshots
  std::optional<std::string> id;                           // exchange
  std::optional<client::RollCallReport> roll_call;         // roll_call
};

class Operation {
 public:
  using Body = std::function<absl::Status(OperationResult*)>;

  // Starts `body` on a new thread. Memory that it uses must live until Wait returned true. The body
  // of an Operation dropped earlier runs to its end.
  // Stop sets `stop`, for a body that looks at it; null for one that does not.
  explicit Operation(Body body, std::shared_ptr<std::atomic<bool>> stop = nullptr);

  // True when the body has ended, false when `timeout` passed first. Call without the GIL.
  bool Wait(std::chrono::nanoseconds timeout);

  // Asks the body to end soon; nothing where it has no `stop`.
  void Stop();

  // Its status and result. Requires that Wait returned true.
  const absl::Status& status() const;
  const OperationResult& result() const;

 private:
  // Shared with the thread, which may outlive the Operation.
  struct State {
    Mutex mutex;
    CondVar ended_changed;
    bool ended = false;
    absl::Status status;
    OperationResult result;
  };
  std::shared_ptr<State> state_;
  std::shared_ptr<std::atomic<bool>> stop_;
};

}  // namespace ballast::python
