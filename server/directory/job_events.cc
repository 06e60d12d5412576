#include "server/directory/job_events.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::server {

void JobEvents::OnJobFound(const JobPlan& plan) {
  if (!parts_.self->IsHome()) return;
  if (plan.resting) return parts_.resting->Add(plan);
  JobPlan made = plan;
  made.making = false;
  parts_.homes->Recover(made, plan.making);
}

void JobEvents::OnJobReopened(const JobPlan& plan) {
  OnJobFound(plan);
  parts_.self->IsHome() ? parts_.homes->Start(plan.name()) : parts_.orphans->AskSoon();
}

void JobEvents::OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) {
  if (rests && parts_.self->IsHome()) parts_.resting->Add(plan);
  parts_.homes->OnEnded(plan, {why, plan.resting});
}

void JobEvents::OnJobForgotten(uint64_t job) {
  parts_.rolls->OnForgotten(job);
  parts_.resting->Forget(job);
}

void JobEvents::OnSeatFree(const QualifiedName& name, uint32_t slot, uint64_t incarnation,
                           bool left) {
  if (!parts_.self->IsHome()) parts_.orphans->AskSoon();
  parts_.homes->OnSeatFree(name, {slot, incarnation, left});
}

void JobEvents::OnJobOrdered(const JobPlan& plan) {
  if (IsDurable(plan)) parts_.orphans->AskLater();
}

// At the home, as long as a peer may say of a job that it has ended, the answer is to wait for
// that.
absl::Status JobEvents::NoRoom(const JobPlan& plan, const absl::Status& why) const {
  const DirectoryConfig& config = parts_.self->config();
  // A tenant's quota is freed by its own jobs only.
  const bool over_quota = ReasonOf(why) == Reason::kOverQuota;
  const HomeJob* const unconfirmed =
      parts_.homes->table().FindUnconfirmed(over_quota ? &plan.tenant : nullptr);
  if (unconfirmed == nullptr) return why;
  const JobPlan& waits = unconfirmed->plan();
  const std::string other =
      waits.tenant == plan.tenant ? absl::StrCat("job \"", waits.spec.name, "\"") : "another job";
  return ReasonedError(
      absl::StatusCode::kUnavailable, Reason::kRecovering,
      absl::StrCat("server ", config.self, " has no room for job \"", plan.spec.name,
                   "\" before its peers have said whether ", other, " still runs; call again"),
      {.job = plan.spec.name, .server = static_cast<int>(config.self)});
}

}  // namespace ballast::server
