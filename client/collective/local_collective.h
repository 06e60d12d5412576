// A collective of threads in one process: the reference for the seam, without a transport.
// Comes from: tests. Goes to: the ranks' memory, on the host.
// Sums are formed in the order of the ranks, in fp32, and rounded to the dtype after each addition.
// Thread safety: a LocalGroup is thread-safe; a rank's Collective is for one thread, but Abort.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/collective/collective.h"
#include "common/base/sync.h"

namespace ballast::collective {

class LocalGroup : public std::enable_shared_from_this<LocalGroup> {
 public:
  // `timeout`: how long a rank waits for the others.
  static std::shared_ptr<LocalGroup> Make(uint32_t world, uint64_t epoch,
                                          std::chrono::nanoseconds timeout);
  // The end of `rank`, which keeps the group. At most one per rank.
  std::unique_ptr<Collective> Join(uint32_t rank);

 private:
  friend class LocalCollective;

  struct Call {
    std::string where;      // for errors
    std::string signature;  // call and size: equal on all ranks
    const void* from;
    // Forms the caller's result from what all ranks gave. Under the group's lock.
    std::function<void(const std::vector<const void*>&)> form;
  };
  struct Part {
    std::string signature;
    const void* from = nullptr;
    bool in = false;
  };

  LocalGroup(uint32_t world, uint64_t epoch, std::chrono::nanoseconds timeout)
      : world_(world), epoch_(epoch), timeout_(timeout), parts_(world) {}

  // One call of one rank. It returns when no other rank reads `call.from` any more.
  absl::Status Run(uint32_t rank, const Call& call);
  // Every call, under way or later, ends with `why`, or an earlier one. Returns that.
  absl::Status EndWith(absl::Status why);
  // Waits until all ranks are here.
  absl::Status Meet(uint32_t rank, const std::string& where) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status End(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckEqual(uint32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<uint32_t> Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t world_;
  const uint64_t epoch_;
  const std::chrono::nanoseconds timeout_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);
  uint32_t here_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status stale_ ABSL_GUARDED_BY(mutex_);  // OK: it is not
};

}  // namespace ballast::collective
