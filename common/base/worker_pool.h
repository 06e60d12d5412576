// Persistent threads for kernels: a parallel-for without OpenMP and without allocation per call.
// Comes from: server/reduce, server/optim, server/tier. Goes to: kernels.
// Thread safety: all methods may be called from any thread, except that a task must not call Run on
// its own pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"

namespace ballast {

// Jobs form a FIFO. A job's task numbers 0..tasks-1 are handed out in increasing order from one
// atomic counter; as soon as all are handed out, free workers start on the next job, so the tail
// of one job overlaps the head of the next. Workers run with the default MXCSR (round to nearest,
// no flush to zero), whatever the creating thread uses: results depend on it.
class WorkerPool {
 public:
  // Starts `threads` >= 1 workers called "<name>-<i>". `niceness` in [0, 19] is added to that of
  // the process (nice(7)): threads that feed the network should not wait behind long kernels.
  explicit WorkerPool(int threads, absl::string_view name = "worker", int niceness = 0);
  // Finishes all submitted jobs, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }

  // Calls body(i) for each i in [0, tasks) on the workers and returns when all calls have
  // returned; their writes are visible to the caller. The calling thread only waits. Queues behind
  // jobs submitted earlier. `body` is borrowed until the return. Must not be called by a task of
  // this pool.
  void Run(size_t tasks, absl::FunctionRef<void(size_t task)> body);

  // As Run without waiting: after the last body call has returned, `done` runs once on a worker
  // (also when `tasks` is 0). `done` should be short, for example a Strand::Post; it may call
  // Submit. Both functions are destroyed after `done` has returned. Neither may throw.
  void Submit(size_t tasks, std::function<void(size_t task)> body, std::function<void()> done);

 private:
  struct Job;

  void Work(absl::string_view name, int niceness);
  void Enqueue(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Both release mu_ while they run the job's functions.
  void WorkOnFirstJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar work_;
  CondVar run_done_;
  Job* head_ ABSL_GUARDED_BY(mu_) = nullptr;
  Job* tail_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // Constant after construction.
};

}  // namespace ballast
