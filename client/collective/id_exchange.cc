#include "client/collective/id_exchange.h"

#include <utility>

#include "client/collective/lost.h"
#include "common/base/status_macros.h"

namespace ballast::collective {

absl::StatusOr<nccl::UniqueId> LocalIdExchange::Agree(std::optional<nccl::UniqueId> mine) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  MutexLock lock(&mutex_);
  if (mine.has_value() && id_.has_value()) {
    return absl::FailedPreconditionError(
        "this communicator has an id already; an id is never used twice");
  }
  if (mine.has_value()) {
    id_ = mine;
    changed_.NotifyAll();
  }
  while (!id_.has_value()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) {
      return Late({0}, epoch_, timeout_, "the agreement on an id");
    }
    changed_.WaitFor(&mutex_, left);
  }
  return *id_;
}

absl::Status LocalIdExchange::Ready(uint32_t rank) {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  MutexLock lock(&mutex_);
  ready_[rank] = true;
  changed_.NotifyAll();
  for (;;) {
    const std::vector<uint32_t> missing = NotReady();
    if (missing.empty()) return absl::OkStatus();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) {
      return Late(missing, epoch_, timeout_, "the start of the communicator");
    }
    changed_.WaitFor(&mutex_, left);
  }
}

std::vector<uint32_t> LocalIdExchange::NotReady() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ready_.size(); ++rank) {
    if (!ready_[rank]) missing.push_back(rank);
  }
  return missing;
}

absl::StatusOr<std::unique_ptr<NcclCollective>> Connect(std::shared_ptr<NcclComms> comms,
                                                        device::Device* device,
                                                        device::Stream stream, IdExchange* ids,
                                                        NcclConfig config) {
  const uint32_t rank = config.rank;
  std::optional<nccl::UniqueId> mine;
  if (rank == 0) {
    BALLAST_ASSIGN_OR_RETURN(mine, comms->library().NewId());
  }
  BALLAST_ASSIGN_OR_RETURN(const nccl::UniqueId id, ids->Agree(mine));
  BALLAST_ASSIGN_OR_RETURN(
      std::unique_ptr<NcclCollective> made,
      NcclCollective::Create(std::move(comms), device, stream, id, std::move(config)));
  BALLAST_RETURN_IF_ERROR(ids->Ready(rank));
  return made;
}

}  // namespace ballast::collective
