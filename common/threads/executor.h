// Executor runs closures; Strand is a sequential mailbox on it. gRPC handlers parse and post here;
// a job's round engine lives on one strand. ThreadExecutor (thread_executor.h) has threads; the
// simulator has an Executor in virtual time.
// Comes from: server/service, client/cpp. Goes to: server/engine, server/directory.
// Thread safety: all methods may be called from any thread unless they say otherwise.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace ballast {

// Tasks must not throw and should not block for long.
class Executor {
 public:
  // Ends as Shutdown() does.
  virtual ~Executor() = default;

  // Runs `task`, in order of posting when tasks run one at a time. Returns false, and drops the
  // task, after Shutdown() has drained.
  virtual bool Post(std::function<void()> task) = 0;

  // As Post, but not before `delay` has passed (at once when it is not positive). Shutdown() drops
  // tasks not due yet. Returns false when the executor is shutting down.
  virtual bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) = 0;

  // Drops pending timers and runs all posted tasks, including those that running tasks still post.
  // Idempotent. Must not be called from one of the executor's own tasks.
  virtual void Shutdown() = 0;

  // True in a task of this executor.
  virtual bool IsOwnThread() const = 0;
  // Whether Post would take a task.
  virtual bool IsOpen() = 0;
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
  // As Post, but an idle strand runs `task` on the calling thread, before this returns: no thread
  // has to be woken, and the memory that the caller just touched is still in its cache. The caller
  // holds no lock that a task of this strand may take.
  bool Dispatch(std::function<void()> task);
  // As Post, after `delay`; see Executor::PostAfter.
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task);

  // Drops the queued tasks, and from now on every other: the process that the executor stands for
  // has ended without running them (simulator).
  void Close();

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

}  // namespace ballast
