// News of absent servers. The thread inside a client call adds them, and Python takes them
// between two slices of its wait, so that the client never waits for the GIL.
// Comes from: JobOptions::on_pause. Goes to: ballast/pauses.py. Thread safety: thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "ballast/client.h"
#include "common/base/sync.h"

namespace ballast::python {

class PauseQueue {
 public:
  PauseQueue() : state_(std::make_shared<State>()) {}

  // A function that adds its argument, for any thread; it may outlive the queue. The queue keeps
  // the newest 64.
  std::function<void(const client::Pause&)> Listener() const;

  // The news added since the last call, in order.
  std::vector<client::Pause> Take();

 private:
  // Shared with the listener, which a client may hold longer than Python holds the queue.
  struct State {
    Mutex mutex;
    std::deque<client::Pause> news ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<State> state_;
};

}  // namespace ballast::python
