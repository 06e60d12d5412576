// LogQueue: the writes that wait for a gradient log, in order. It is not the executor's own queue,
// because a record that finds no room has to stay in front of all later ones.
// Comes from: StorageRoundLog. Goes to: the log's executor. Thread safety: Add and End from any
// thread; Front and Pop from the log's thread.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/sync.h"

namespace ballast::server {

class LogQueue {
 public:
  // `run` returns RESOURCE_EXHAUSTED to be tried again after the next trim. `after_end`: runs also
  // while the log is being closed.
  struct Task {
    std::function<absl::Status()> run;
    bool after_end = false;
  };

  // Whether the caller has to start running tasks: all earlier ones have run.
  bool Add(Task task) {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    return !std::exchange(running_, true);
  }

  // From now on only tasks with `after_end` run; the others are dropped.
  void End() {
    MutexLock lock(&mu_);
    ended_ = true;
  }

  // The task to run next; null for none. Add does not move it.
  Task* Front() {
    std::deque<Task> dropped;  // Destroyed after the lock: closures may own anything.
    MutexLock lock(&mu_);
    while (ended_ && !tasks_.empty() && !tasks_.front().after_end) {
      dropped.push_back(std::move(tasks_.front()));
      tasks_.pop_front();
    }
    running_ = !tasks_.empty();
    return running_ ? &tasks_.front() : nullptr;
  }

  void Pop() {
    Task done;  // As in Front.
    MutexLock lock(&mu_);
    done = std::move(tasks_.front());
    tasks_.pop_front();
  }

 private:
  Mutex mu_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ballast::server
