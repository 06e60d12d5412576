// SimThreads: the ExecutorSource of one simulated process. Its executors and pools run tasks as
// events, in virtual time, in a seeded order; when the process ends, their remaining tasks are
// dropped. A task of a disk's thread may pause in a flush (World::GiveWay), so that other tasks,
// other machines and the end of the process come in the middle of it.
// Comes from: SimProcess. Goes to: the shipped classes that work on executors. Thread safety: one
// thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/threads/executor_source.h"
#include "tests/sim/swarm.h"
#include "tests/sim/world/fiber.h"
#include "tests/sim/world/world.h"

namespace ballast::sim {

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
    bool pauses = false;  // tasks run on fibers
    std::function<void()> after_task;
  };
  // What there is to do. Events may outlive the executor.
  struct Queue {
    explicit Queue(const Options& o) : options(o) {}
    bool Alive() const { return options.world->Life(options.node) == options.life; }
    bool idle() const { return tasks.empty() && under_way == 0; }
    // Tasks that have begun run to their end, without a pause.
    void FinishPaused();
    // The process has ended: nothing runs any more.
    void Drop();

    const Options options;
    std::deque<std::function<void()>> tasks;
    std::map<uint64_t, std::function<void()>> timers;  // here, so that they end with the process
    uint64_t newest_timer = 0;
    std::vector<std::shared_ptr<Fiber>> fibers;  // some have ended
    size_t under_way = 0;                        // events on their way, and tasks that run
    size_t running = 0;
    bool closed = false;
  };

  explicit SimExecutor(const Options& options) : queue_(std::make_shared<Queue>(options)) {}
  ~SimExecutor() override { Shutdown(); }

  bool Post(std::function<void()> task) override;
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) override;
  void Shutdown() override;
  bool IsOwnThread() const override { return queue_->running > 0; }
  bool IsOpen() override { return !queue_->closed && queue_->Alive(); }
  const std::shared_ptr<Queue>& queue() const { return queue_; }

 private:
  static void Begin(const std::shared_ptr<Queue>& queue);
  static void RunOne(const std::shared_ptr<Queue>& queue);
  static void OnEnded(const std::shared_ptr<Queue>& queue);

  const std::shared_ptr<Queue> queue_;
};

class SimThreads final : public ExecutorSource {
 public:
  // Of the process that `node` runs now. `after_task` runs after every task of a disk's thread.
  SimThreads(World* world, const Swarm* swarm, NodeId node, std::function<void()> after_task)
      : world_(world),
        swarm_(swarm),
        node_(node),
        life_(world->Life(node)),
        after_task_(std::move(after_task)) {}

  // What kind of a thread it is, and how long a task takes, follows from `name`: of the log, of
  // images and of captures are threads of a disk; kernels take their time; else it takes none.
  std::unique_ptr<Executor> MakeExecutor(absl::string_view name, int threads,
                                         int niceness = 0) override;
  // Runs at once: the process waits for it before it serves. "warming" does nothing.
  std::unique_ptr<WorkerPool> MakeWorkers(absl::string_view name, int threads) override;

  // No executor has a task.
  bool idle() const;
  // The process has ended: tasks begun end now, with the disk refusing everything, and the rest is
  // dropped.
  void Drop();

 private:
  Tick PaceOf(absl::string_view name) const;

  World* const world_;
  const Swarm* const swarm_;
  const NodeId node_;
  const uint64_t life_;
  const std::function<void()> after_task_;
  std::vector<std::shared_ptr<SimExecutor::Queue>> queues_;
};

// The workers of a process: a job takes a drawn time and ends with its tiles in any order; jobs
// overtake one another.
class SimWorkers final : public WorkerPool {
 public:
  // `executor` runs the jobs. Its number of threads is `threads`.
  SimWorkers(World* world, std::unique_ptr<Executor> executor, int threads)
      : world_(world), executor_(std::move(executor)), threads_(threads) {}

  int threads() const override { return threads_; }
  // At once.
  void Run(size_t tasks, absl::FunctionRef<void(size_t task)> body) override;
  void Submit(size_t tasks, std::function<void(size_t task)> body,
              std::function<void()> done) override;

 private:
  World* const world_;
  const std::unique_ptr<Executor> executor_;
  const int threads_;
};

}  // namespace ballast::sim
