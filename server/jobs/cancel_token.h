// CancelToken: cancels work on other threads, with a reason.
// Comes from: BackgroundTasks (the server stops, the home is lost, or the job is dropped). Goes to:
// exports, imports, restores and verifications, which ask between two extents.
// Thread safety: thread-safe.
#pragma once

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"

namespace ballast::server {

class CancelToken {
 public:
  // The work is to end with `why`, an error. The first call counts.
  void Cancel(const absl::Status& why) {
    MutexLock lock(&mu_);
    if (why_.ok()) why_ = why;
    cancelled_.store(true, std::memory_order_release);
  }

  // OK while the work may continue.
  absl::Status status() const {
    if (!cancelled_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(&mu_);
    return why_;
  }

 private:
  std::atomic<bool> cancelled_{false};
  mutable Mutex mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
