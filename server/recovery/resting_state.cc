#include "server/recovery/resting_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/recovery/recovery.h"
#include "server/round/job_plan.h"

namespace ballast::server {
namespace {

// Lets CaptureExtents read the files themselves.
class RestingLog : public StateHolds {
 public:
  explicit RestingLog(JobStorage* storage) : storage_(storage) {}

  absl::Status ReadHeld(uint32_t extent, uint64_t version, void* to) override {
    return storage_->images()->Read(extent, version, to);
  }
  absl::Status ReadHeld(const LoggedExtent& extent, void* to) override {
    return storage_->log()->ReadExtent(extent, to);
  }

 private:
  JobStorage* const storage_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<RestingState>> RestingState::Open(
    const JobPlan& plan, uint32_t self, std::unique_ptr<JobStorage> storage, simd::Isa isa) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  struct Capture capture {
    .layout = std::move(layout), .log = std::make_shared<RestingLog>(storage.get()),
    .rounds = storage->log()->rounds(), .kernels = &optim::Kernels(isa),
    .optimizer = OptimizerOf(plan.spec)
  };
  for (const auto& [round, logged] : capture.rounds) {
    const bool whole = logged.decision.has_value() && logged.prepared.has_value();
    if (whole && round + 1 >= plan.epoch.start_round) capture.round = round + 1;
  }
  if (capture.round == 0) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
        absl::StrCat("job \"", plan.spec.name, "\" rests and has not finished a round; ",
                     "take the snapshot while its trainers are attached"),
        {.job = plan.spec.name, .server = static_cast<int>(self)});
  }
  return std::make_shared<RestingState>(plan, self, std::move(storage), std::move(capture));
}

absl::StatusOr<CapturedRound> RestingState::Capture(uint64_t round, const TakeExtent& take,
                                                    const std::atomic<bool>& cancelled) {
  if (round != capture_.round) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
        absl::StrCat("job \"", plan_.spec.name, "\" was broken off: server ", self_, " rests at ",
                     "round ", capture_.round, ", another one at round ", round,
                     "; attach its trainers, and take the snapshot while they run or when they ",
                     "have left"),
        {.job = plan_.spec.name, .round = round, .server = static_cast<int>(self_)});
  }
  BALLAST_ASSIGN_OR_RETURN(const CapturedRound before, RoundBefore(capture_));
  for (uint32_t extent = 0; extent < capture_.layout.extents().size(); ++extent) {
    if (plan_.owner[extent] != self_) continue;
    BALLAST_RETURN_IF_ERROR(StateLostIn(plan_, self_, CaptureExtent(extent, take, cancelled)));
  }
  return before;
}

// Uses the newest whole image, as recovery does. An image newer than the round comes from a step
// whose decision did not survive.
absl::Status RestingState::CaptureExtent(uint32_t extent, const TakeExtent& take,
                                         const std::atomic<bool>& cancelled) {
  absl::Status why = absl::DataLossError(absl::StrCat("extent ", extent, " has no image"));
  bool taken = false;
  const TakeExtent once = [&](uint32_t of, const void* image) {
    taken = true;
    return take(of, image);
  };
  for (const uint64_t version : storage_->images()->Versions(extent)) {
    if (version > capture_.round) continue;
    capture_.held.versions = {{extent, version}};
    why = CaptureExtents(capture_, once, cancelled);
    if (taken || !absl::IsDataLoss(why)) break;
    BALLAST_LOG(ERROR, LogField("run", plan_.spec.name)) << why.message();
  }
  return why;
}

}  // namespace ballast::server
