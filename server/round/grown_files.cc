#include "server/round/grown_files.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/io/arena.h"
#include "server/round/image_copy.h"

namespace ballast::server {
namespace {

// Waits for the disk.
absl::Status ReadImage(ImageIo* io, uint32_t extent, void* to) {
  Mutex mu;
  CondVar cv;
  bool done = false;
  absl::Status outcome;
  io->Read(extent, to, [&](const absl::Status& status) {
    MutexLock lock(&mu);
    outcome = status;
    done = true;
    cv.NotifyAll();
  });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  return outcome;
}

absl::Status CopyState(const GrownFiles::State& from, JobStorage* storage) {
  const Layout& layout = from.fsm->layout();
  const NvmeTier* const nvme = from.state->nvme;
  const uint64_t largest =
      LargestImageBytes(layout, from.fsm->owned(), StateArrayCount(from.fsm->plan().spec));
  BALLAST_ASSIGN_OR_RETURN(const Arena image,
                           Arena::Create(std::max(largest, uint64_t{kPageBytes})));
  for (const uint32_t extent : from.fsm->owned()) {
    std::vector<uint32_t> chunk_crcs;
    if (nvme == nullptr || nvme->IsHere(extent)) {
      chunk_crcs = CopyToImage(layout, &from.state->store, extent, image.data());
    } else {
      BALLAST_RETURN_IF_ERROR(ReadImage(from.images->image_io(), extent, image.data()));
    }
    BALLAST_RETURN_IF_ERROR(
        storage->images()->Write(extent, from.fsm->round(), image.data(), chunk_crcs));
  }
  return storage->images()->Sync();
}

}  // namespace

absl::Status GrownFiles::Make(const JobPlan& plan, const GrowthFiles& files, const State& from) {
  if (AreFor(plan, from.fsm->round())) return absl::OkStatus();
  storage_.reset();
  BALLAST_RETURN_IF_ERROR(from.fsm->CheckGrowth(plan));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStorage> storage, files.make(plan));
  BALLAST_FAILPOINT_RETURN("growth.before_state");
  BALLAST_RETURN_IF_ERROR(CopyState(from, storage.get()));
  if (from.last_decision->has_value()) {
    BALLAST_RETURN_IF_ERROR(storage->log()->Seed(*from.fsm->last_prepared(), **from.last_decision));
  }
  BALLAST_FAILPOINT_RETURN("growth.after_state");
  storage_ = std::move(storage);
  plan_ = plan;
  round_ = from.fsm->round();
  return absl::OkStatus();
}

bool GrownFiles::AreFor(const JobPlan& plan, uint64_t round) const {
  return storage_ != nullptr && round_ == round && plan_.layout_version == plan.layout_version &&
         plan_.epoch.epoch == plan.epoch.epoch && plan_.owner == plan.owner &&
         FirstDifference(plan_.spec, plan.spec).empty();
}

std::unique_ptr<JobStorage> GrownFiles::Take() { return std::move(storage_); }

}  // namespace ballast::server
