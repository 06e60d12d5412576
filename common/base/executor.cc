// Executor and Strand; see executor.h.
// Thread safety: one mutex per executor and one per strand; a strand's is taken before its
// executor's, never after.
#include "common/base/executor.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace ballast {
namespace {

// What the calling thread is running for, so that the current executor and strand can be told.
thread_local const Executor* t_executor = nullptr;
thread_local const void* t_strand = nullptr;

// Tasks of one strand per turn on a thread, so that a busy strand cannot starve the others.
constexpr int kStrandTasksPerTurn = 64;

}  // namespace

void SetThreadName(absl::string_view name) {
  const std::string kept(name.substr(0, 15));
  pthread_setname_np(pthread_self(), kept.c_str());
}

Executor::Executor(absl::string_view name, int threads) : name_(name) {
  BALLAST_CHECK(threads >= 1);
  MutexLock lock(&shutdown_mu_);
  threads_.reserve(static_cast<size_t>(threads) + 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { RunTasks(i); });
  threads_.emplace_back([this] { RunTimers(); });
}

Executor::~Executor() { Shutdown(); }

bool Executor::Post(std::function<void()> task) {
  MutexLock lock(&mu_);
  if (stopped_) return false;
  tasks_.push_back(std::move(task));
  work_.NotifyOne();
  return true;
}

bool Executor::PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
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

void Executor::Shutdown() {
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

bool Executor::IsOpen() {
  MutexLock lock(&mu_);
  return !stopped_;
}

bool Executor::IsOwnThread() const { return t_executor == this; }

void Executor::RunTasks(int index) {
  SetThreadName(absl::StrCat(name_, "-", index));
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

void Executor::RunTimers() {
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

struct Strand::State {
  explicit State(Executor* e) : executor(e) {}

  Executor* const executor;
  Mutex mu;
  std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mu);
  bool scheduled ABSL_GUARDED_BY(mu) = false;  // A Drain is queued or running.
};

Strand::Strand(Executor* executor) : state_(std::make_shared<State>(executor)) {}

bool Strand::PostTo(const std::shared_ptr<State>& state, std::function<void()> task) {
  MutexLock lock(&state->mu);
  if (!state->scheduled) {
    if (!state->executor->Post([state] { Drain(state); })) return false;
    state->scheduled = true;
  }
  state->tasks.push_back(std::move(task));
  return true;
}

bool Strand::Post(std::function<void()> task) { return PostTo(state_, std::move(task)); }

bool Strand::PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
  return state_->executor->PostAfter(
      delay, [state = state_, task = std::move(task)] { PostTo(state, task); });
}

void Strand::Drain(const std::shared_ptr<State>& state) {
  t_strand = state.get();
  for (int turn = 0; turn < kStrandTasksPerTurn; ++turn) {
    std::function<void()> task;
    {
      MutexLock lock(&state->mu);
      if (state->tasks.empty()) break;
      task = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    task();
  }
  t_strand = nullptr;
  EndTurn(state);
}

void Strand::EndTurn(const std::shared_ptr<State>& state) {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock: they may own anything
  MutexLock lock(&state->mu);
  state->scheduled = false;
  if (state->tasks.empty()) return;
  // The executor drains before it stops, so that it takes this from its own threads always.
  state->scheduled = state->executor->Post([state] { Drain(state); });
  if (!state->scheduled) dropped.swap(state->tasks);
}

bool Strand::Dispatch(std::function<void()> task) {
  const std::shared_ptr<State> state = state_;
  {
    MutexLock lock(&state->mu);
    if (state->scheduled) {
      state->tasks.push_back(std::move(task));
      return true;
    }
    if (!state->executor->IsOpen()) return false;
    state->scheduled = true;
  }
  const void* const outer = std::exchange(t_strand, state.get());
  task();
  task = nullptr;
  t_strand = outer;
  EndTurn(state);
  return true;
}

std::function<bool(std::function<void()>)> Strand::Poster() const {
  return [state = state_](std::function<void()> task) { return PostTo(state, std::move(task)); };
}

bool Strand::IsCurrent() const { return t_strand == state_.get(); }

void Strand::AssertCurrent() const { BALLAST_CHECK(IsCurrent()); }

}  // namespace ballast
