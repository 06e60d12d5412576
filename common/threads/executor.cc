// Strand; see executor.h.
// Thread safety: one mutex per strand, taken before its executor's, never after.
#include "common/threads/executor.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"
#include "common/base/sync.h"

namespace ballast {
namespace {

// The strand whose task the calling thread runs.
thread_local const void* t_strand = nullptr;

// Tasks of one strand per turn on a thread, so that a busy strand cannot starve the others.
constexpr int kStrandTasksPerTurn = 64;

}  // namespace

struct Strand::State {
  explicit State(Executor* e) : executor(e) {}

  Executor* const executor;
  Mutex mu;
  std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mu);
  bool scheduled ABSL_GUARDED_BY(mu) = false;  // A Drain is queued or running.
  bool closed ABSL_GUARDED_BY(mu) = false;
};

Strand::Strand(Executor* executor) : state_(std::make_shared<State>(executor)) {}

bool Strand::PostTo(const std::shared_ptr<State>& state, std::function<void()> task) {
  MutexLock lock(&state->mu);
  if (state->closed) return false;
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
  const void* const outer = std::exchange(t_strand, state.get());
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
  t_strand = outer;
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
    if (state->closed) return false;
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

void Strand::Close() {
  std::deque<std::function<void()>> dropped;  // As in EndTurn.
  MutexLock lock(&state_->mu);
  state_->closed = true;
  dropped.swap(state_->tasks);
}

std::function<bool(std::function<void()>)> Strand::Poster() const {
  return [state = state_](std::function<void()> task) { return PostTo(state, std::move(task)); };
}

bool Strand::IsCurrent() const { return t_strand == state_.get(); }

void Strand::AssertCurrent() const { BALLAST_CHECK(IsCurrent()); }

}  // namespace ballast
