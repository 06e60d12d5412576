// Threads that run closures: Executor is a fixed set of threads, Strand a sequential mailbox on it.
// gRPC handlers parse and post here; a job's round engine lives on one strand.
// Comes from: server/rpc, client/cpp. Goes to: server/round's drivers, server/cluster.
// Thread safety: all methods may be called from any thread unless they say otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"

namespace ballast {

// A fixed set of threads. Tasks must not throw and should not block for long.
class Executor {
 public:
  // Starts `threads` >= 1 threads called "<name>-<i>", and "<name>-timer" (the kernel keeps 15
  // characters of a name).
  Executor(absl::string_view name, int threads);
  // As Shutdown().
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs `task` on one of the threads, in order of posting when there is one thread. Returns false,
  // and drops the task, after Shutdown() has drained.
  bool Post(std::function<void()> task);

  // As Post, but not before `delay` has passed (at once when it is not positive). Shutdown() drops
  // what is not due yet. Returns false when the executor is shutting down.
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task);

  // Drops pending timers, runs all posted tasks including those that running tasks still post,
  // then joins the threads. Idempotent. Must not be called from one of the executor's own tasks.
  void Shutdown();

  // True on one of this executor's task threads.
  bool IsOwnThread() const;
  // Whether Post would take a task.
  bool IsOpen();

 private:
  struct Timer {
    std::chrono::steady_clock::time_point due;
    uint64_t order;  // Equal times fire in order of posting.
    std::function<void()> task;
    // Greater means later, so that std heaps keep the next one to fire in front.
    bool operator<(const Timer& other) const {
      return due != other.due ? due > other.due : order > other.order;
    }
  };

  void RunTasks(int index);
  void RunTimers();

  const std::string name_;
  Mutex mu_;
  CondVar work_;
  CondVar timer_change_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<Timer> timers_ ABSL_GUARDED_BY(mu_);  // A std heap.
  uint64_t next_timer_order_ ABSL_GUARDED_BY(mu_) = 0;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Mutex shutdown_mu_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(shutdown_mu_);
};

// A mailbox whose tasks run one at a time, in order of posting, on the executor's threads. Tasks
// of one strand see each other's writes without further locking. The executor must outlive it;
// the strand itself may be destroyed while tasks are queued, and they still run.
class Strand {
 public:
  explicit Strand(Executor* executor);
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Queues `task`. Returns false, and drops it, after the executor has shut down.
  bool Post(std::function<void()> task);
  // As Post, but a strand that has nothing to do runs `task` on the calling thread, before this
  // returns: no thread has to be woken, and what the caller just touched is still in its cache. The
  // caller holds no lock that a task of this strand may take.
  bool Dispatch(std::function<void()> task);
  // As Post, after `delay`; see Executor::PostAfter.
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task);

  // Post for callers that may outlive the strand, but not the executor.
  std::function<bool(std::function<void()>)> Poster() const;

  // True while called from one of this strand's tasks.
  bool IsCurrent() const;
  // Ends the process unless called from one of this strand's tasks.
  void AssertCurrent() const;

 private:
  struct State;
  static void Drain(const std::shared_ptr<State>& state);
  static bool PostTo(const std::shared_ptr<State>& state, std::function<void()> task);
  // Ends a turn, and asks for another when tasks wait.
  static void EndTurn(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

// Names the calling thread as debuggers and top show it; keeps the first 15 characters.
void SetThreadName(absl::string_view name);

}  // namespace ballast
