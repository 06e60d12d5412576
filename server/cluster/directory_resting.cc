// Directory: snapshots of jobs that rest. No engine is needed: each server opens the files as they
// are, and the thread for the disk brings them to the round. The home lets nobody wake the job
// meanwhile; one that was started again does not know of the snapshot any more, and what its peers
// still have open for it gives way.
// Thread safety: on the strand; what blocks on the disk on a thread for that.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"

namespace ballast::server {
namespace {

absl::Status GivenUp(uint64_t job) {
  return absl::AbortedError(
      absl::StrCat("the snapshot of resting job ", JobIdText(job), " was given up"));
}

}  // namespace

// --- At the home --------------------------------------------------------------------------------

absl::Status Directory::HeldAtRest(const JobPlan& plan) const {
  const auto local = local_.find(plan.job);
  const bool runs = local != local_.end() && !local->second.ended;
  if (runs || taking_.count(plan.job) == 0) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       absl::StrCat("a snapshot of job \"", plan.spec.name, "\", which rests, is ",
                                    "being taken; call again when it is there"),
                       {.job = plan.spec.name});
}

// --- At every server ----------------------------------------------------------------------------

bool Directory::RestsHere(uint64_t job) const {
  const auto local = local_.find(job);
  const bool runs = local != local_.end() && !local->second.ended;
  return !runs && store_ != nullptr;
}

bool Directory::ReleaseResting(uint64_t job) {
  const auto found = resting_holds_.find(job);
  if (found == resting_holds_.end()) return true;
  *found->second.cancelled = true;
  if (found->second.busy) return false;  // What uses the files ends soon, and closes them.
  resting_holds_.erase(found);
  return true;
}

void Directory::HoldResting(const SnapshotCall& call,
                            const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  if (!ReleaseResting(call.job)) return done(GivenUp(call.job));  // Of an earlier snapshot.
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  resting_holds_[call.job] = {call.snapshot, cancelled};
  OnDisk([this, call, cancelled, done]() -> std::function<void()> {
    const auto open = [&]() -> absl::StatusOr<std::shared_ptr<RestingState>> {
      absl::StatusOr<JobPlan> plan = store_->Find(call.job);
      if (absl::IsNotFound(plan.status())) return NoDurableJob(call.job);
      BALLAST_RETURN_IF_ERROR(plan.status());
      BALLAST_ASSIGN_OR_RETURN(auto storage, store_->Open(*plan));
      return RestingState::Open(*plan, config_.self, std::move(storage), deps_.isa);
    };
    absl::StatusOr<std::shared_ptr<RestingState>> state =
        *cancelled ? absl::StatusOr<std::shared_ptr<RestingState>>(GivenUp(call.job)) : open();
    return [this, call, cancelled, state, done] {
      RestingHold& hold = resting_holds_[call.job];
      hold.busy = false;
      hold.state = state.ok() ? *state : nullptr;
      if (state.ok() && !*cancelled) return done((*state)->round());
      resting_holds_.erase(call.job);
      done(state.ok() ? GivenUp(call.job) : state.status());
    };
  });
}

void Directory::CaptureResting(const SnapshotCall& call, CapturedRound* before,
                               const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  const auto found = resting_holds_.find(call.job);
  if (found == resting_holds_.end() || found->second.snapshot != call.snapshot ||
      found->second.busy) {
    return done(GivenUp(call.job));
  }
  found->second.busy = true;
  OnDisk([this, call, before, done, state = std::move(found->second.state),
          cancelled = found->second.cancelled]() mutable -> std::function<void()> {
    const auto capture = [&]() -> absl::StatusOr<CapturedRound> {
      BALLAST_ASSIGN_OR_RETURN(
          const std::shared_ptr<ImageFile> part,
          snapshots_.store->CreatePart(call.snapshot, state->plan(), state->layout()));
      BALLAST_ASSIGN_OR_RETURN(
          const CapturedRound end,
          state->Capture(call.round, TakeInto(part, state->plan(), state->layout(), call.round),
                         *cancelled));
      BALLAST_RETURN_IF_ERROR(part->Sync());
      return end;
    };
    const absl::StatusOr<CapturedRound> end = capture();
    state = nullptr;  // Closed before anybody is told.
    return [this, call, before, end, done] {
      resting_holds_.erase(call.job);
      if (!end.ok()) return done(end.status());
      if (before != nullptr) *before = *end;
      done(call.round);
    };
  });
}

}  // namespace ballast::server
