#include "client/collective/nccl_comms.h"

#include <algorithm>
#include <utility>

namespace ballast::collective {

absl::StatusOr<int> NcclComm::Run(const std::function<int(nccl::Comm)>& call) {
  MutexLock lock(&mutex_);
  if (!end_.ok()) return end_;
  return call(comm_);
}

nccl::Comm NcclComm::Take(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (end_.ok()) end_ = why;
  return std::exchange(comm_, nullptr);
}

absl::StatusOr<std::shared_ptr<NcclComm>> NcclComms::Begin(const nccl::UniqueId& id, int rank,
                                                           int world) {
  auto made = std::make_shared<NcclComm>();
  nccl::Config config;
  int result = 0;
  {
    MutexLock lock(&made->mutex_);
    result = library_->functions().comm_init_rank_config(&made->comm_, world, id, rank, &config);
  }
  if (result != nccl::kSuccess && result != nccl::kInProgress) {
    Abort({made}, absl::AbortedError("this communicator did not begin"));
    return library_->ErrorOf("init of the communicator", result);
  }
  MutexLock lock(&mutex_);
  comms_.push_back(made);
  return made;
}

void NcclComms::AbortAll(const absl::Status& why) {
  std::vector<std::shared_ptr<NcclComm>> all;
  {
    MutexLock lock(&mutex_);
    all.swap(comms_);
  }
  Abort(all, why);
}

void NcclComms::End(const std::shared_ptr<NcclComm>& comm) {
  {
    MutexLock lock(&mutex_);
    comms_.erase(std::remove(comms_.begin(), comms_.end(), comm), comms_.end());
  }
  Abort({comm}, absl::CancelledError("this communicator has ended"));
}

void NcclComms::Abort(const std::vector<std::shared_ptr<NcclComm>>& comms,
                      const absl::Status& why) {
  std::vector<nccl::Comm> taken;
  for (const auto& comm : comms) {
    if (const nccl::Comm mine = comm->Take(why); mine != nullptr) taken.push_back(mine);
  }
  if (taken.empty()) return;
  const nccl::Functions& nccl = library_->functions();
  // Within a group an abort only marks; memory is freed at the end of the group. Errors of an
  // abandoned communicator change nothing.
  nccl.group_start();
  for (const nccl::Comm comm : taken) nccl.comm_abort(comm);
  nccl.group_end();
}

}  // namespace ballast::collective
