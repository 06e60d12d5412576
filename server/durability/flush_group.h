// FlushGroup: finished writes that wait for one flush together.
// Comes from: StorageRoundLog. Goes to: the callers of its WriteImage. Thread safety: thread-safe.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/sync.h"

namespace ballast::server {

class FlushGroup {
 public:
  using Done = std::function<void(absl::Status)>;

  // Adds a waiting write; true for the first since Take, for which the caller requests a flush.
  bool Add(Done done) {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(done));
    return waiting_.size() == 1;
  }
  // All waiting writes, for the caller to flush and to report.
  std::vector<Done> Take() {
    MutexLock lock(&mu_);
    return std::exchange(waiting_, {});
  }

 private:
  Mutex mu_;
  std::vector<Done> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
