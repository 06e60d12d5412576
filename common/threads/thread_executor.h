// ThreadExecutor: a fixed set of threads and one more for timers. Comes from: main programs,
// through ExecutorSource. Goes to: Executor's users. Thread safety: as Executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"
#include "common/threads/executor.h"

namespace ballast {

class ThreadExecutor final : public Executor {
 public:
  // Starts `threads` >= 1 threads called "<name>-<i>", and "<name>-timer" (the kernel keeps 15
  // characters of a name). The former have at least `niceness` (priority.h).
  ThreadExecutor(absl::string_view name, int threads, int niceness = 0);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  bool Post(std::function<void()> task) override;
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) override;
  // Joins the threads, too.
  void Shutdown() override;
  bool IsOwnThread() const override;
  bool IsOpen() override;

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
  const int niceness_;
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

// Names the calling thread as debuggers and top show it; keeps the first 15 characters.
void SetThreadName(absl::string_view name);

}  // namespace ballast
