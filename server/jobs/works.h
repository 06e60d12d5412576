// Works: progress of long tasks on this server, for waiting operators.
// Comes from: snapshots, restores, exports, imports. Goes to: the Admin service.
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"

namespace ballast::server {

// One of them: this server's share. Any thread adds to `done_bytes`.
struct Work {
  Work(std::string kind_of, std::string name_of, uint64_t bytes)
      : kind(std::move(kind_of)), name(std::move(name_of)), total_bytes(bytes) {}

  const std::string kind;  // snapshot | restore | export | import
  const std::string name;  // of the result
  const uint64_t total_bytes;
  std::atomic<uint64_t> done_bytes{0};
};

class Works {
 public:
  // It is listed until the result is gone.
  std::shared_ptr<Work> Begin(const std::string& kind, const std::string& name, uint64_t bytes) {
    auto work = std::make_shared<Work>(kind, name, bytes);
    MutexLock lock(&mu_);
    std::erase_if(works_, [](const std::weak_ptr<Work>& one) { return one.expired(); });
    works_.push_back(work);
    return work;
  }

  std::vector<std::shared_ptr<const Work>> List() const {
    std::vector<std::shared_ptr<const Work>> works;
    MutexLock lock(&mu_);
    for (const std::weak_ptr<Work>& one : works_) {
      if (const std::shared_ptr<Work> work = one.lock(); work != nullptr) works.push_back(work);
    }
    return works;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::weak_ptr<Work>> works_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
