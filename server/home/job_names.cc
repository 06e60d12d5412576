#include "server/home/job_names.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/home/home_errors.h"

namespace ballast::server {
namespace {

absl::Status Busy(const std::string& name, const std::string& why) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy, why, {.job = name});
}

}  // namespace

absl::StatusOr<JobPlan> JobNames::WholeJob(const QualifiedName& name) const {
  const HomeJob* const home = parts_.homes->Find(name);
  const bool made = home == nullptr || home->made();
  if (home != nullptr && made && parts_.jobs->Runs(home->plan().job)) {
    return parts_.jobs->Get(home->plan().job)->plan;
  }
  if (const JobPlan* const resting = parts_.resting->Find(name); made && resting != nullptr) {
    JobPlan plan = *resting;
    plan.resting = false;
    plan.resting_round = 0;
    return plan;
  }
  if (home == nullptr) {
    const absl::Status why = parts_.damaged->CheckOpen(name);
    return why.ok() ? NoJobOfName(name.name) : why;
  }
  return Busy(name.name, absl::StrCat("job \"", name.name, "\" ",
                                      made ? "has ended, and nothing of it is on disk"
                                           : "is being attached to; take the snapshot when its "
                                             "trainers have begun"));
}

absl::StatusOr<JobPlan> JobNames::MadeJob(const QualifiedName& name) const {
  const HomeJob* const home = parts_.homes->Find(name);
  if (home != nullptr && !home->made()) {
    return Busy(name.name,
                absl::StrCat("trainers are attaching to job \"", name.name, "\"; stop them first"));
  }
  if (home != nullptr) return home->plan();
  if (const JobPlan* const resting = parts_.resting->Find(name); resting != nullptr) {
    return *resting;
  }
  if (const auto damaged = parts_.damaged->Find(name); damaged != nullptr) return damaged->plan;
  return NoJobOfName(name.name);
}

bool JobNames::HasName(const QualifiedName& name) const {
  return parts_.homes->Find(name) != nullptr || parts_.resting->Find(name) != nullptr ||
         parts_.damaged->Find(name) != nullptr;
}

}  // namespace ballast::server
