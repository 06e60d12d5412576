// SimThreads: the ExecutorSource of one simulated process. Its executors and pools run tasks as
// events, in virtual time, in a seeded order; when the process ends, what they still have is
// dropped. A task that flushes a file gives way (SimDisk), so that other tasks, other machines and
// the end of the process come in the middle of it.
// Comes from: SimServer. Goes to: the shipped classes that work on executors. Thread safety: one
// thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/executor_source.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world.h"

namespace ballast::sim {

class SimThreads final : public ExecutorSource {
 public:
  // Of the process that `node` runs now. `after_task` runs after every task.
  SimThreads(World* world, const Swarm* swarm, NodeId node, std::function<void()> after_task)
      : world_(world),
        swarm_(swarm),
        node_(node),
        life_(world->Life(node)),
        after_task_(std::move(after_task)) {}

  // What tasks still wait is dropped: some own their executor.
  ~SimThreads() override;

  // How long a task takes follows from `name`: pace of the log, of images, of captures; else
  // nothing.
  std::unique_ptr<Executor> MakeExecutor(absl::string_view name, int threads,
                                         int niceness = 0) override;
  std::unique_ptr<WorkerPool> MakeWorkers(absl::string_view name, int threads) override;

  // No executor has a task.
  bool idle() const;

 private:
  Tick PaceOf(absl::string_view name) const;

  World* const world_;
  const Swarm* const swarm_;
  const NodeId node_;
  const uint64_t life_;
  const std::function<void()> after_task_;
  std::vector<std::function<bool()>> idle_;  // by executor
  std::vector<std::function<void()>> drop_;  // likewise
};

// Up to `threads` tasks are under way at a time, and end in any order; with one thread they end in
// the order of posting.
class SimExecutor final : public Executor {
 public:
  struct Options {
    World* world = nullptr;
    NodeId node = kNobody;
    uint64_t life = 0;
    EventKind kind = EventKind::kStrand;
    Tick pace = 0;  // of a task
    size_t threads = 1;
    std::function<void()> after_task;
  };
  explicit SimExecutor(const Options& options) : state_(std::make_shared<State>(options)) {}
  ~SimExecutor() override { Shutdown(); }

  bool Post(std::function<void()> task) override;
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) override;
  void Shutdown() override;
  bool IsOwnThread() const override { return state_->running > 0; }
  // Tells whether nothing is queued or under way; may outlive this.
  std::function<bool()> IdleTest() const {
    return [state = state_] { return state->tasks.empty() && state->under_way == 0; };
  }
  // Drops what is queued; may outlive this.
  std::function<void()> Dropper() const {
    return [state = state_] { std::deque<std::function<void()>>().swap(state->tasks); };
  }
  bool IsOpen() override { return !state_->closed && state_->Alive(); }

 private:
  // Events may outlive the executor.
  struct State {
    explicit State(const Options& o) : options(o) {}
    bool Alive() const { return options.world->Life(options.node) == options.life; }

    const Options options;
    std::deque<std::function<void()>> tasks;
    size_t under_way = 0;  // events on their way, and tasks that run
    size_t running = 0;
    bool closed = false;
  };
  static void Begin(const std::shared_ptr<State>& state);
  static void RunOne(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

// Run works at once: recovery waits for it before the process serves.
class SimWorkers final : public WorkerPool {
 public:
  explicit SimWorkers(int threads) : threads_(threads) {}
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

}  // namespace ballast::sim
