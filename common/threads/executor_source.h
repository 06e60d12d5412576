// ExecutorSource makes the executors and pools that classes work on: a class that wants threads of
// its own takes one of these and never starts a thread. Comes from: main programs (ThreadSource),
// the simulator. Goes to: the round log, captures, recovery, the job directory. Thread safety:
// thread-safe.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "common/threads/executor.h"
#include "common/threads/worker_pool.h"

namespace ballast {

class ExecutorSource {
 public:
  virtual ~ExecutorSource() = default;
  // An executor whose tasks run `threads` >= 1 at a time, on threads called "<name>-<i>" with at
  // least `niceness` (priority.h). The caller owns it.
  virtual std::unique_ptr<Executor> MakeExecutor(absl::string_view name, int threads,
                                                 int niceness = 0) = 0;
  // A pool of `threads` >= 1 workers with names likewise. The caller owns it.
  virtual std::unique_ptr<WorkerPool> MakeWorkers(absl::string_view name, int threads) = 0;
};

// Makes threads of the operating system. Immutable.
class ThreadSource final : public ExecutorSource {
 public:
  static ThreadSource* Get();
  std::unique_ptr<Executor> MakeExecutor(absl::string_view name, int threads,
                                         int niceness = 0) override;
  std::unique_ptr<WorkerPool> MakeWorkers(absl::string_view name, int threads) override;
};

}  // namespace ballast
