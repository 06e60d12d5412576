// Engine: a job that grows between two rounds, and its files with it. See engine.h.
//
// A durable job's files have the size of its layout, so a grown job gets new ones: made and filled
// with the state of the open round while the old ones still count, then named by its record. A
// crash before that leaves the job as it was, one after it leaves it grown, without the new groups'
// initial weights, which the trainers bring again. Cost: the whole state is written once.
// Thread safety: on the job's strand, which waits for the disk; the job has nothing else to do.
#include <algorithm>

#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/round/engine.h"

namespace ballast::server {

void Engine::DoExtend(const JobPlan& plan, uint32_t window_extents, const GrowthFiles& files,
                      const std::function<void(absl::Status)>& done) {
  if (!failure_.ok()) return done(failure_);
  if (absl::Status status = CheckPlan(plan); !status.ok()) return done(status);
  if (!fsm_.durable()) return done(TakeGrown(plan, window_extents));
  const JobPlan& ours = fsm_.plan();
  if (plan.layout_version == ours.layout_version && FirstDifference(ours.spec, plan.spec).empty()) {
    return done(absl::OkStatus());  // The home asks again.
  }
  if (plan.epoch.epoch != ours.epoch.epoch) {
    return done(
        ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                      absl::StrCat("server ", config_.self, " is in epoch ", ours.epoch.epoch,
                                   ", the job grows in epoch ", plan.epoch.epoch),
                      {.job = name_, .server = static_cast<int>(config_.self)}));
  }
  if (fsm_.round() < plan.grown_round) {  // The round before it is decided and ends soon.
    after_apply_.push_back([=, this] { DoExtend(plan, window_extents, files, done); });
    return;
  }
  if (nvme_ == nullptr) return GrowNow(plan, window_extents, files, done);
  // What is under way belongs to the old files.
  nvme_->WhenQuiet([=, this] { GrowNow(plan, window_extents, files, done); });
}

void Engine::GrowNow(const JobPlan& plan, uint32_t window_extents, const GrowthFiles& files,
                     const std::function<void(absl::Status)>& done) {
  if (!failure_.ok()) return done(failure_);
  absl::Status status =
      grown_version_ == plan.layout_version ? absl::OkStatus() : MakeGrownFiles(plan, files);
  if (status.ok() && !plan.growing) status = CommitGrown(plan, window_extents, files);
  done(status);
}

// Makes the files of the grown job, which nobody uses yet, and puts all that is committed there.
absl::Status Engine::MakeGrownFiles(const JobPlan& plan, const GrowthFiles& files) {
  grown_files_.reset();
  grown_version_ = 0;
  BALLAST_RETURN_IF_ERROR(fsm_.CheckGrowth(plan));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStorage> storage, files.make(plan));
  BALLAST_FAILPOINT_RETURN("growth.before_state");
  const Layout& layout = fsm_.layout();
  size_t largest = kPageBytes;
  for (const uint32_t extent : fsm_.owned()) {
    largest = std::max<size_t>(largest,
                               ImageFile::BufferBytes({extent, layout.extents()[extent].elements}));
  }
  BALLAST_ASSIGN_OR_RETURN(const Arena image, Arena::Create(largest));
  for (const uint32_t extent : fsm_.owned()) {
    std::vector<uint32_t> chunk_crcs;
    if (nvme_ == nullptr || nvme_->IsHere(extent)) {
      chunk_crcs = CopyToImage(layout, &store_, extent, image.data());
    } else {
      BALLAST_RETURN_IF_ERROR(ReadImage(extent, image.data()));
    }
    BALLAST_RETURN_IF_ERROR(
        storage->images()->Write(extent, fsm_.round(), image.data(), chunk_crcs));
  }
  BALLAST_RETURN_IF_ERROR(storage->images()->Sync());
  if (last_decision_.has_value()) {
    BALLAST_RETURN_IF_ERROR(storage->log()->Seed(*fsm_.last_prepared(), *last_decision_));
  }
  BALLAST_FAILPOINT_RETURN("growth.after_state");
  grown_files_ = std::move(storage);
  grown_version_ = plan.layout_version;
  return absl::OkStatus();
}

// From the record on there is no way back: what fails behind it ends the server, which then goes
// on with the grown job.
absl::Status Engine::CommitGrown(const JobPlan& plan, uint32_t window_extents,
                                 const GrowthFiles& files) {
  BALLAST_RETURN_IF_ERROR(fsm_.CheckGrowth(plan));
  JobPlan grown = plan;
  grown.sealed_epoch = fsm_.sealed() ? plan.epoch.epoch : 0;
  BALLAST_FAILPOINT("growth.before_record");
  if (absl::Status saved = files.save(grown); !saved.ok()) {
    StorageFailed(saved);
    return saved;
  }
  BALLAST_FAILPOINT("growth.after_record");
  log_ = JobStorage::MakeRoundLog(std::move(grown_files_), fsm_.round() - 1, deps_.executors,
                                  nvme_ != nullptr ? config_.tier_threads : 0);
  grown_version_ = 0;
  ++log_generation_;
  WatchRoom();
  files.drop_old(grown);
  return TakeGrown(grown, window_extents);
}

absl::Status Engine::TakeGrown(const JobPlan& plan, uint32_t window_extents) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  const std::vector<uint32_t> before = fsm_.owned();
  BALLAST_RETURN_IF_ERROR(fsm_.Extend(plan, layout, window_extents));
  window_extents_.store(window_extents, std::memory_order_relaxed);
  std::vector<uint32_t> fresh;
  std::vector<uint64_t> versions;  // of the slots
  for (const uint32_t extent : fsm_.owned()) {
    const bool known = std::find(before.begin(), before.end(), extent) != before.end();
    if (!known) fresh.push_back(extent);
    versions.push_back(known ? fsm_.round() : 0);
  }
  BALLAST_RETURN_IF_ERROR(store_.Add(layout, fresh));
  if (nvme_ != nullptr) {
    for (const uint32_t extent : before) nvme_->SetStored(extent, fsm_.round());
    ConnectTier();
    versions.clear();
  }
  BALLAST_ASSIGN_OR_RETURN(contributions_, Contributions::Create(layout, fsm_.owned().size(),
                                                                 plan.epoch, window_extents));
  BALLAST_ASSIGN_OR_RETURN(
      checkpointer_,
      Checkpointer::Create(layout, nvme_ == nullptr ? fsm_.owned() : std::vector<uint32_t>(),
                           versions, config_.checkpoint_rounds));
  weight_pools_.clear();
  weights_.clear();
  BALLAST_LOG(INFO, LogField("run", name_), LogField("round", fsm_.round()))
      << "grown to " << plan.spec.tensors.size() << " tensors, layout version "
      << plan.layout_version;
  return absl::OkStatus();
}

}  // namespace ballast::server
