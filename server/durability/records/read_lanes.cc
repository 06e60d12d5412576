#include "server/durability/records/read_lanes.h"

#include <atomic>

#include "common/base/status_macros.h"
#include "common/threads/thread_worker_pool.h"

namespace ballast::server {

absl::StatusOr<ReadLanes> ReadLanes::Create(int lanes, size_t scratch_bytes) {
  ReadLanes made;
  for (int i = 0; i < lanes; ++i) {
    BALLAST_ASSIGN_OR_RETURN(Arena scratch, Arena::Create(scratch_bytes));
    made.scratch_.push_back(std::move(scratch));
  }
  if (lanes > 1) made.pool_ = std::make_unique<ThreadWorkerPool>(lanes, "open");
  return made;
}

absl::Status ReadLanes::ForEach(
    size_t count, absl::FunctionRef<absl::Status(size_t i, const Arena& scratch)> body) {
  std::vector<absl::Status> outcomes(count);
  std::atomic<size_t> next{0};
  const auto work = [&](size_t lane) {
    for (size_t i = next++; i < count; i = next++) outcomes[i] = body(i, scratch_[lane]);
  };
  if (pool_ == nullptr || count < 2) {
    work(0);
  } else {
    pool_->Run(scratch_.size(), work);
  }
  for (const absl::Status& outcome : outcomes) BALLAST_RETURN_IF_ERROR(outcome);
  return absl::OkStatus();
}

}  // namespace ballast::server
