#include "common/threads/executor_source.h"

#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"

namespace ballast {

ThreadSource* ThreadSource::Get() {
  static ThreadSource source;
  return &source;
}

std::unique_ptr<Executor> ThreadSource::MakeExecutor(absl::string_view name, int threads,
                                                     int niceness) {
  return std::make_unique<ThreadExecutor>(name, threads, niceness);
}

std::unique_ptr<WorkerPool> ThreadSource::MakeWorkers(absl::string_view name, int threads) {
  return std::make_unique<ThreadWorkerPool>(threads, name);
}

}  // namespace ballast
