#include "tests/sim/threads.h"

#include <algorithm>
#include <utility>

namespace ballast::sim {

// --- SimThreads ---------------------------------------------------------------------------------

Tick SimThreads::PaceOf(absl::string_view name) const {
  if (name == "log") return swarm_->pace.log_write;
  if (name == "images" || name == "image-reads") return swarm_->pace.image_write;
  if (name == "capture") return swarm_->snapshots.pace;
  return 0;
}

std::unique_ptr<Executor> SimThreads::MakeExecutor(absl::string_view name, int threads, int) {
  auto executor = std::make_unique<SimExecutor>(
      SimExecutor::Options{.world = world_,
                           .node = node_,
                           .life = life_,
                           .kind = name == "log" ? EventKind::kLog : EventKind::kImages,
                           .pace = PaceOf(name),
                           .threads = static_cast<size_t>(threads),
                           .after_task = after_task_});
  idle_.push_back(executor->IdleTest());
  drop_.push_back(executor->Dropper());
  return executor;
}

std::unique_ptr<WorkerPool> SimThreads::MakeWorkers(absl::string_view, int threads) {
  return std::make_unique<SimWorkers>(threads);
}

SimThreads::~SimThreads() {
  for (const auto& drop : drop_) drop();
}

bool SimThreads::idle() const {
  return std::all_of(idle_.begin(), idle_.end(), [](const auto& idle) { return idle(); });
}

// --- SimExecutor --------------------------------------------------------------------------------

bool SimExecutor::Post(std::function<void()> task) {
  if (!IsOpen()) return false;
  state_->tasks.push_back(std::move(task));
  if (state_->under_way < state_->options.threads) Begin(state_);
  return true;
}

bool SimExecutor::PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
  if (delay <= std::chrono::nanoseconds::zero()) return Post(std::move(task));
  if (!IsOpen()) return false;
  const Options& options = state_->options;
  options.world->clock(options.node)
      ->AfterInLife(static_cast<Tick>(delay.count()), options.life, EventKind::kTimer,
                    [this, state = state_, task = std::move(task)] {
                      if (!state->closed) Post(task);
                    });
  return true;
}

void SimExecutor::Begin(const std::shared_ptr<State>& state) {
  ++state->under_way;
  const Options& options = state->options;
  const Tick delay =
      options.pace == 0 ? 0 : options.world->random().Between(options.pace / 4, options.pace);
  options.world->AfterInLife(delay, options.node, options.life, options.kind,
                             [state] { RunOne(state); });
}

void SimExecutor::RunOne(const std::shared_ptr<State>& state) {
  if (state->tasks.empty()) {  // Shutdown has run it.
    --state->under_way;
    return;
  }
  const size_t choices = std::min(state->tasks.size(), state->options.threads - state->running);
  const size_t which = choices == 1 ? 0 : state->options.world->random().Below(choices);
  std::function<void()> task = std::move(state->tasks[which]);
  state->tasks.erase(state->tasks.begin() + static_cast<ptrdiff_t>(which));
  ++state->running;
  state->options.world->AllowGivingWay();
  task();
  task = nullptr;
  --state->running;
  --state->under_way;
  if (state->closed || !state->Alive()) return;
  if (state->options.after_task) state->options.after_task();
  if (state->tasks.size() > state->under_way - state->running) Begin(state);
}

void SimExecutor::Shutdown() {
  std::deque<std::function<void()>> dropped;
  while (state_->Alive() && !state_->tasks.empty()) {
    const std::function<void()> task = std::move(state_->tasks.front());
    state_->tasks.pop_front();
    task();
  }
  state_->closed = true;
  dropped.swap(state_->tasks);
}

}  // namespace ballast::sim
