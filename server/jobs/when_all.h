// WhenAll: runs a completion once after a number of calls, with the first error.
// Comes from: the parts of Directory, which ask several servers. Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"

namespace ballast::server {

class WhenAll {
 public:
  // `done` runs on the thread of the last Add; at once when `count` is 0.
  WhenAll(size_t count, std::function<void(absl::Status)> done)
      : left_(count), done_(std::move(done)) {
    if (count == 0) done_(absl::OkStatus());
  }

  void Add(const absl::Status& status) {
    absl::Status first_error;
    {
      MutexLock lock(&mu_);
      if (left_ == 0) return;  // Given up.
      if (first_error_.ok()) first_error_ = status;
      if (--left_ != 0) return;
      first_error = first_error_;
    }
    done_(first_error);
  }

  // Runs `done` with `why` now, unless it has run. Later calls of Add have no effect.
  void GiveUp(const absl::Status& why) {
    {
      MutexLock lock(&mu_);
      if (left_ == 0) return;
      left_ = 0;
    }
    done_(why);
  }

 private:
  Mutex mu_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  const std::function<void(absl::Status)> done_;
};

}  // namespace ballast::server
