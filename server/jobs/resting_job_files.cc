#include "server/jobs/resting_job_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"

namespace ballast::server {
namespace {

absl::Status GivenUp(uint64_t job) {
  return absl::AbortedError(
      absl::StrCat("the snapshot of resting job ", JobIdText(job), " was given up"));
}

}  // namespace

void RestingJobFiles::Hold(uint64_t job, uint64_t snapshot, const HoldDone& done) {
  if (!Release(job)) return done(GivenUp(job));  // Of an earlier snapshot.
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  holds_[job] = {snapshot, cancelled};
  const auto open = [this, job, cancelled] {
    return *cancelled ? Opened(GivenUp(job)) : Open(job);
  };
  work_->Run(BackgroundTasks::Thread::kSnapshots, open,
             [this, job, done](const Opened& state) { OnOpened(job, state, done); });
}

RestingJobFiles::Opened RestingJobFiles::Open(uint64_t job) const {
  absl::StatusOr<JobPlan> plan = store_->Find(job);
  if (absl::IsNotFound(plan.status())) return self_->NoDurableJob(job);
  BALLAST_RETURN_IF_ERROR(plan.status());
  BALLAST_ASSIGN_OR_RETURN(auto storage, store_->Open(*plan));
  return RestingState::Open(*plan, self_->id(), std::move(storage), isa_);
}

void RestingJobFiles::OnOpened(uint64_t job, const Opened& state, const HoldDone& done) {
  Held& held = holds_[job];
  held.busy = false;
  held.state = state.ok() ? *state : nullptr;
  if (state.ok() && !*held.cancelled) return done((*state)->round());
  holds_.erase(job);
  done(state.ok() ? GivenUp(job) : state.status());
}

void RestingJobFiles::Take(uint64_t job, uint64_t snapshot, const Capture& capture,
                           const CaptureDone& done) {
  const auto found = holds_.find(job);
  if (found == holds_.end() || found->second.snapshot != snapshot || found->second.busy) {
    return done(GivenUp(job));
  }
  found->second.busy = true;
  auto take = [capture, state = std::move(found->second.state),
               cancelled = found->second.cancelled]() mutable {
    const absl::StatusOr<CapturedRound> end = capture(state.get(), *cancelled);
    state = nullptr;  // The files are closed before the answer.
    return end;
  };
  work_->Run(BackgroundTasks::Thread::kSnapshots, std::move(take),
             [this, job, done](const absl::StatusOr<CapturedRound>& end) {
               holds_.erase(job);
               done(end);
             });
}

bool RestingJobFiles::Release(uint64_t job) {
  const auto found = holds_.find(job);
  if (found == holds_.end()) return true;
  *found->second.cancelled = true;
  if (found->second.busy) return false;  // The files' user ends soon, and closes them.
  holds_.erase(found);
  return true;
}

absl::Status RestingJobFiles::LetGo(const JobPlan& plan) {
  if (Release(plan.job)) return absl::OkStatus();
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       absl::StrCat("server ", self_->id(), " gives up a snapshot of job \"",
                                    plan.spec.name, "\", which rested; call again"),
                       {.job = plan.spec.name, .server = static_cast<int>(self_->id())});
}

void RestingJobFiles::CancelAll() {
  for (auto& [job, held] : holds_) *held.cancelled = true;
}

}  // namespace ballast::server
