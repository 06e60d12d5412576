// WorkerPool: a parallel-for for kernels, without OpenMP and without allocation per call.
// ThreadWorkerPool (thread_worker_pool.h) has threads; the simulator's runs tasks as events.
// Comes from: server/reduce, server/optim, server/tier. Goes to: kernels.
// Thread safety: all methods may be called from any thread, except that a task must not call Run on
// its own pool.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/functional/function_ref.h"

namespace ballast {

// Workers run with the default MXCSR (round to nearest, no flush to zero), whatever the creating
// thread uses: results depend on it.
class WorkerPool {
 public:
  // Finishes all submitted batches.
  virtual ~WorkerPool() = default;

  // How many tasks run at a time.
  virtual int threads() const = 0;

  // Calls body(i) for each i in [0, tasks) on the workers and returns when all calls have
  // returned; their writes are visible to the caller. The calling thread only waits. Batches
  // submitted earlier run first. `body` is borrowed until the return. Must not be called by a task
  // of this pool.
  virtual void Run(size_t tasks, absl::FunctionRef<void(size_t task)> body) = 0;

  // As Run without waiting: after the last body call has returned, `done` runs once on a worker
  // (also when `tasks` is 0). `done` should be short, for example a Strand::Post; it may call
  // Submit. Both functions are destroyed after `done` has returned. Neither may throw.
  virtual void Submit(size_t tasks, std::function<void(size_t task)> body,
                      std::function<void()> done) = 0;
};

}  // namespace ballast
