// ThreadWorkerPool; see thread_worker_pool.h.
// Thread safety: the batch list and the counts of users are under one mutex, taken twice per worker
// and batch; handing out tasks is one atomic addition.
#include "common/threads/thread_worker_pool.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/threads/priority.h"
#include "common/threads/thread_executor.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ballast {
namespace {

thread_local const WorkerPool* t_pool = nullptr;

// All exceptions masked, round to nearest, denormals kept: the state a process starts with.
void SetDefaultFloatMode() {
#if defined(__SSE__)
  _mm_setcsr(0x1F80);
#endif
}

}  // namespace

// Lives on the caller's stack for Run and on the heap for Submit. It is over when it has left the
// list (all tasks handed out) and has no users (all calls returned).
struct ThreadWorkerPool::Batch {
  // For Run.
  Batch(size_t n, absl::FunctionRef<void(size_t)> f) : tasks(n), body(f) {}
  // For Submit.
  Batch(size_t n, std::function<void(size_t)> f, std::function<void()> d)
      : tasks(n), owned_body(std::move(f)), body(owned_body), done(std::move(d)), owned(true) {}

  const size_t tasks;
  const std::function<void(size_t)> owned_body;
  const absl::FunctionRef<void(size_t)> body;
  const std::function<void()> done;
  const bool owned = false;
  // Protected by mu_ of the pool.
  Batch* next = nullptr;
  int users = 0;
  bool in_list = true;
  bool over = false;
  // Hammered by all workers, so it has a cache line to itself.
  alignas(64) std::atomic<size_t> next_task{0};
};

ThreadWorkerPool::ThreadWorkerPool(int threads, absl::string_view name, int niceness) {
  BALLAST_CHECK(threads >= 1 && niceness >= 0 && niceness <= 19);
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, niceness, thread_name = absl::StrCat(name, "-", i)] {
      Work(thread_name, niceness);
    });
  }
}

ThreadWorkerPool::~ThreadWorkerPool() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    work_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadWorkerPool::Run(size_t tasks, absl::FunctionRef<void(size_t)> body) {
  BALLAST_CHECK(t_pool != this);  // With all workers waiting like this none would work.
  Batch batch(tasks, body);
  MutexLock lock(&mu_);
  Enqueue(&batch);
  while (!batch.over) run_done_.Wait(&mu_);
}

void ThreadWorkerPool::Submit(size_t tasks, std::function<void(size_t)> body,
                              std::function<void()> done) {
  Batch* batch = new Batch(tasks, std::move(body), std::move(done));  // Deleted by Finish.
  MutexLock lock(&mu_);
  Enqueue(batch);
}

void ThreadWorkerPool::Enqueue(Batch* batch) {
  (tail_ != nullptr ? tail_->next : head_) = batch;
  tail_ = batch;
  if (batch->tasks > 1) {
    work_.NotifyAll();
  } else {
    work_.NotifyOne();
  }
}

void ThreadWorkerPool::Work(absl::string_view name, int niceness) {
  SetThreadName(name);
  if (niceness > 0) LowerPriority(niceness);
  SetDefaultFloatMode();
  t_pool = this;
  MutexLock lock(&mu_);
  while (true) {
    while (head_ == nullptr && !stopping_) work_.Wait(&mu_);
    if (head_ == nullptr) return;
    WorkOnFirstBatch();
  }
}

void ThreadWorkerPool::WorkOnFirstBatch() {
  Batch* const batch = head_;
  ++batch->users;
  mu_.Unlock();
  const auto began = std::chrono::steady_clock::now();
  while (true) {
    const size_t task = batch->next_task.fetch_add(1, std::memory_order_relaxed);
    if (task >= batch->tasks) break;
    batch->body(task);
  }
  busy_ns_.fetch_add((std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds(1),
                     std::memory_order_relaxed);
  mu_.Lock();
  if (batch->in_list) {
    // Only the head is ever worked on, so this batch is still the head.
    head_ = batch->next;
    if (head_ == nullptr) tail_ = nullptr;
    batch->in_list = false;
  }
  if (--batch->users == 0) Finish(batch);
}

void ThreadWorkerPool::Finish(Batch* batch) {
  if (!batch->owned) {
    batch->over = true;
    run_done_.NotifyAll();
    return;
  }
  mu_.Unlock();
  if (batch->done) batch->done();
  delete batch;
  mu_.Lock();
}

}  // namespace ballast
