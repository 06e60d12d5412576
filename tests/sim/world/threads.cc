#include "tests/sim/world/threads.h"

#include <algorithm>
#include <utility>

namespace ballast::sim {
namespace {

bool IsDisk(absl::string_view name) {
  return name == "log" || name == "images" || name == "image-reads" || name == "capture" ||
         name == "snapshots";
}

// For work that the process waits for.
class WaitedWorkers final : public WorkerPool {
 public:
  explicit WaitedWorkers(int threads) : threads_(threads) {}
  int threads() const override { return threads_; }
  void Run(size_t tasks, absl::FunctionRef<void(size_t task)> body) override {
    for (size_t task = 0; task < tasks; ++task) body(task);
  }
  void Submit(size_t tasks, std::function<void(size_t task)> body,
              std::function<void()> done) override {
    Run(tasks, body);
    done();
  }

 private:
  const int threads_;
};

// For work that only makes the real system give memory. It takes most of a seed's time.
class NoWorkers final : public WorkerPool {
 public:
  int threads() const override { return 1; }
  void Run(size_t, absl::FunctionRef<void(size_t task)>) override {}
  void Submit(size_t, std::function<void(size_t task)>, std::function<void()> done) override {
    done();
  }
};

}  // namespace

// --- SimThreads ---------------------------------------------------------------------------------

Tick SimThreads::PaceOf(absl::string_view name) const {
  if (name == "log") return swarm_->pace.log_write;
  if (name == "images" || name == "image-reads") return swarm_->pace.image_write;
  if (name == "capture" || name == "snapshots") return swarm_->snapshots.pace;
  if (name == "kernels") return swarm_->pace.kernel;
  return 0;
}

std::unique_ptr<Executor> SimThreads::MakeExecutor(absl::string_view name, int threads, int) {
  const bool disk = IsDisk(name);
  EventKind kind = disk ? EventKind::kImages : EventKind::kStrand;
  if (name == "log") kind = EventKind::kLog;
  if (name == "kernels") kind = EventKind::kKernel;
  auto executor = std::make_unique<SimExecutor>(
      SimExecutor::Options{.world = world_,
                           .node = node_,
                           .life = life_,
                           .kind = kind,
                           .pace = PaceOf(name),
                           .threads = static_cast<size_t>(threads),
                           .pauses = disk,
                           .after_task = disk ? after_task_ : nullptr});
  queues_.push_back(executor->queue());
  return executor;
}

std::unique_ptr<WorkerPool> SimThreads::MakeWorkers(absl::string_view name, int threads) {
  if (name == "warming") return std::make_unique<NoWorkers>();
  return std::make_unique<WaitedWorkers>(threads);
}

bool SimThreads::idle() const {
  return std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue->idle(); });
}

void SimThreads::Drop() {
  for (const auto& queue : queues_) queue->FinishPaused();
  for (const auto& queue : queues_) queue->Drop();
}

// --- SimExecutor --------------------------------------------------------------------------------

void SimExecutor::Queue::FinishPaused() {
  for (const std::shared_ptr<Fiber>& fiber : std::exchange(fibers, {})) {
    if (fiber.get() != Fiber::Current()) fiber->Finish();
  }
}

void SimExecutor::Queue::Drop() {
  closed = true;
  std::deque<std::function<void()>>().swap(tasks);
  std::map<uint64_t, std::function<void()>>().swap(timers);
}

bool SimExecutor::Post(std::function<void()> task) {
  if (!IsOpen()) return false;
  queue_->tasks.push_back(std::move(task));
  if (queue_->under_way < queue_->options.threads) Begin(queue_);
  return true;
}

bool SimExecutor::PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) {
  if (delay <= std::chrono::nanoseconds::zero()) return Post(std::move(task));
  if (!IsOpen()) return false;
  const Options& options = queue_->options;
  const uint64_t timer = ++queue_->newest_timer;
  queue_->timers[timer] = std::move(task);
  options.world->clock(options.node)
      ->AfterInLife(static_cast<Tick>(delay.count()), options.life, EventKind::kTimer,
                    [this, queue = queue_, timer] {
                      if (queue->closed) return;
                      Post(std::move(queue->timers.extract(timer).mapped()));
                    });
  return true;
}

void SimExecutor::Begin(const std::shared_ptr<Queue>& queue) {
  ++queue->under_way;
  const Options& options = queue->options;
  const Tick delay =
      options.pace == 0 ? 0 : options.world->random().Between(options.pace / 4, options.pace);
  options.world->AfterInLife(delay, options.node, options.life, options.kind,
                             [queue] { RunOne(queue); });
}

void SimExecutor::RunOne(const std::shared_ptr<Queue>& queue) {
  if (queue->tasks.empty()) {  // Shutdown has run it.
    --queue->under_way;
    return;
  }
  const size_t choices = std::min(queue->tasks.size(), queue->options.threads - queue->running);
  const size_t which = choices == 1 ? 0 : queue->options.world->random().Below(choices);
  std::function<void()> task = std::move(queue->tasks[which]);
  queue->tasks.erase(queue->tasks.begin() + static_cast<ptrdiff_t>(which));
  ++queue->running;
  if (!queue->options.pauses) {
    task();
    task = nullptr;
    return OnEnded(queue);
  }
  std::erase_if(queue->fibers, [](const auto& fiber) { return fiber->ended(); });
  const auto fiber = std::make_shared<Fiber>([queue, task = std::move(task)]() mutable {
    task();
    task = nullptr;
    OnEnded(queue);
  });
  queue->fibers.push_back(fiber);
  fiber->Resume();
}

void SimExecutor::OnEnded(const std::shared_ptr<Queue>& queue) {
  --queue->running;
  --queue->under_way;
  if (queue->closed || !queue->Alive()) return;
  if (queue->options.after_task) queue->options.after_task();
  if (queue->tasks.size() > queue->under_way - queue->running) Begin(queue);
}

void SimExecutor::Shutdown() {
  if (queue_->Alive()) queue_->FinishPaused();
  while (queue_->Alive() && !queue_->tasks.empty()) {
    const std::function<void()> task = std::move(queue_->tasks.front());
    queue_->tasks.pop_front();
    task();
  }
  queue_->Drop();
}

// --- SimWorkers ---------------------------------------------------------------------------------

void SimWorkers::Run(size_t tasks, absl::FunctionRef<void(size_t task)> body) {
  for (size_t task = 0; task < tasks; ++task) body(task);
}

void SimWorkers::Submit(size_t tasks, std::function<void(size_t task)> body,
                        std::function<void()> done) {
  executor_->Post([world = world_, tasks, body = std::move(body), done = std::move(done)] {
    const size_t first = tasks > 1 ? world->random().Below(tasks) : 0;
    for (size_t i = 0; i < tasks; ++i) body((first + i) % tasks);
    done();
  });
}

}  // namespace ballast::sim
