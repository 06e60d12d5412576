#include "common/threads/thread_executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/threads/priority.h"

namespace ballast {
namespace {

// The executor whose task the calling thread runs.
thread_local const Executor* t_executor = nullptr;

}  // namespace

void SetThreadName(absl::string_view name) {
  const std::string kept(name.substr(0, 15));
  pthread_setname_np(pthread_self(), kept.c_str());
}

ThreadExecutor::ThreadExecutor(absl::string_view name, int threads, int niceness)
    : name_(name), niceness_(niceness) {
  BALLAST_CHECK(threads >= 1);
  MutexLock lock(&shutdown_mu_);
  threads_.reserve(static_cast<size_t>(threads) + 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { RunTasks(i); });
  threads_.emplace_back([this] { RunTimers(); });
}

ThreadExecutor::~ThreadExecutor() { Shutdown(); }

bool ThreadExecutor::Post(std::function<void()> task) {
  MutexLock lock(&mu_);
  if (stopped_) return false;
  tasks_.push_back(std::move(task));
  work_.NotifyOne();
  return true;
}

bool ThreadExecutor::PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
  if (delay <= std::chrono::nanoseconds::zero()) return Post(std::move(task));
  const auto now = std::chrono::steady_clock::now();
  // A delay that would overflow the clock means never; the far end of the clock is that.
  const auto longest = std::chrono::steady_clock::time_point::max() - now;
  const auto due = now + std::min<std::chrono::nanoseconds>(delay, longest);
  MutexLock lock(&mu_);
  if (draining_) return false;
  timers_.push_back(Timer{due, next_timer_order_++, std::move(task)});
  std::push_heap(timers_.begin(), timers_.end());
  timer_change_.NotifyOne();
  return true;
}

void ThreadExecutor::Shutdown() {
  BALLAST_CHECK(!IsOwnThread());
  MutexLock shutdown_lock(&shutdown_mu_);
  std::vector<Timer> dropped;  // Destroyed after mu_ is released: closures may own anything.
  {
    MutexLock lock(&mu_);
    draining_ = true;
    dropped.swap(timers_);
    work_.NotifyAll();
    timer_change_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool ThreadExecutor::IsOpen() {
  MutexLock lock(&mu_);
  return !stopped_;
}

bool ThreadExecutor::IsOwnThread() const { return t_executor == this; }

void ThreadExecutor::RunTasks(int index) {
  SetThreadName(absl::StrCat(name_, "-", index));
  if (niceness_ > 0) GiveWay(niceness_);
  t_executor = this;
  mu_.Lock();
  while (true) {
    // While draining, a running task may still post more, so idle threads stay until none runs.
    while (tasks_.empty() && !(draining_ && running_ == 0)) work_.Wait(&mu_);
    if (tasks_.empty()) break;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++running_;
    mu_.Unlock();
    task();
    task = nullptr;
    mu_.Lock();
    --running_;
  }
  stopped_ = true;
  work_.NotifyAll();
  mu_.Unlock();
}

void ThreadExecutor::RunTimers() {
  SetThreadName(absl::StrCat(name_, "-timer"));
  mu_.Lock();
  while (!draining_) {
    if (timers_.empty()) {
      timer_change_.Wait(&mu_);
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (timers_.front().due > now) {
      // Short waits, because some standard libraries overflow on waits of centuries.
      timer_change_.WaitFor(&mu_, std::min<std::chrono::nanoseconds>(timers_.front().due - now,
                                                                     std::chrono::hours(1)));
      continue;
    }
    std::pop_heap(timers_.begin(), timers_.end());
    tasks_.push_back(std::move(timers_.back().task));
    timers_.pop_back();
    work_.NotifyOne();
  }
  mu_.Unlock();
}

}  // namespace ballast
