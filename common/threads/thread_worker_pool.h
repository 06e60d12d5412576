// ThreadWorkerPool: persistent threads for kernels. Comes from: main programs, through
// ExecutorSource. Goes to: kernels. Thread safety: as WorkerPool.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"
#include "common/threads/worker_pool.h"

namespace ballast {

// Batches form a FIFO. A batch's task numbers 0..tasks-1 are handed out in increasing order from
// one atomic counter; as soon as all are handed out, free workers start on the next batch, so the
// tail of one batch overlaps the head of the next.
class ThreadWorkerPool final : public WorkerPool {
 public:
  // Starts `threads` >= 1 workers called "<name>-<i>". `niceness` in [0, 19] is added to that of
  // the process (nice(7)): threads that feed the network should not wait for long kernels.
  explicit ThreadWorkerPool(int threads, absl::string_view name = "worker", int niceness = 0);
  // Joins the threads, too.
  ~ThreadWorkerPool() override;
  ThreadWorkerPool(const ThreadWorkerPool&) = delete;
  ThreadWorkerPool& operator=(const ThreadWorkerPool&) = delete;

  // How long workers have spent in tasks, summed over all of them. Any thread.
  std::chrono::nanoseconds busy() const {
    return std::chrono::nanoseconds(busy_ns_.load(std::memory_order_relaxed));
  }

  int threads() const override { return static_cast<int>(threads_.size()); }
  // The calling thread only waits.
  void Run(size_t tasks, absl::FunctionRef<void(size_t task)> body) override;
  void Submit(size_t tasks, std::function<void(size_t task)> body,
              std::function<void()> done) override;

 private:
  struct Batch;

  void Work(absl::string_view name, int niceness);
  void Enqueue(Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Both release mu_ while they run the batch's functions.
  void WorkOnFirstBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::atomic<int64_t> busy_ns_{0};
  Mutex mu_;
  CondVar work_;
  CondVar run_done_;
  Batch* head_ ABSL_GUARDED_BY(mu_) = nullptr;
  Batch* tail_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // Constant after construction.
};

}  // namespace ballast
