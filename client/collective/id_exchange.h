// How the ranks of a job agree on the id of a communicator.
// Comes from: the rendezvous of an epoch. Goes to: NcclCollective::Create. An id is for one epoch
// and generation, and is never used twice; the implementation refuses the rest.
// Thread safety: thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/collective/nccl_collective.h"
#include "common/base/sync.h"

namespace ballast::collective {

class IdExchange {
 public:
  virtual ~IdExchange() = default;

  // The lowest rank gives `mine`; all get it. UNAVAILABLE: it did not come in time.
  virtual absl::StatusOr<nccl::UniqueId> Agree(std::optional<nccl::UniqueId> mine) = 0;

  // Reports that this rank's communicator is made; OK when all ranks have reported. UNAVAILABLE
  // names those that did not in time.
  virtual absl::Status Ready(uint32_t rank) = 0;
};

// One communicator of one epoch for the threads of a process; for tests.
class LocalIdExchange final : public IdExchange {
 public:
  LocalIdExchange(uint32_t world, uint64_t epoch, std::chrono::nanoseconds timeout)
      : epoch_(epoch), timeout_(timeout), ready_(world) {}

  absl::StatusOr<nccl::UniqueId> Agree(std::optional<nccl::UniqueId> mine) override;
  absl::Status Ready(uint32_t rank) override;

 private:
  std::vector<uint32_t> NotReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t epoch_;
  const std::chrono::nanoseconds timeout_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<nccl::UniqueId> id_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> ready_ ABSL_GUARDED_BY(mutex_);
};

// NcclCollective::Create with an id of the lowest rank; returns when all ranks have theirs. The
// errors of both.
absl::StatusOr<std::unique_ptr<NcclCollective>> Connect(std::shared_ptr<NcclComms> comms,
                                                        device::Device* device,
                                                        device::Stream stream, IdExchange* ids,
                                                        NcclConfig config);

}  // namespace ballast::collective
