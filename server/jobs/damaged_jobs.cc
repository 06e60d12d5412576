#include "server/jobs/damaged_jobs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/text/names.h"
#include "server/round/no_job.h"

namespace ballast::server {
namespace {

// Whether the data on disk is the cause. Otherwise memory or configuration is, and the text says
// so.
bool IsDamage(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return false;
  const Reason reason = ReasonOf(status);
  return reason == Reason::kUnspecified || reason == Reason::kStateLost ||
         reason == Reason::kStorageFailed;
}

}  // namespace

const char* DamagedJobs::Entry::state() const {
  return ReasonOf(why) == Reason::kStateLost ? "damaged" : "unopened";
}

absl::Status DamagedJobs::Note(const JobPlan& plan, const absl::Status& status) {
  if (!IsDamage(status)) return status;
  const std::string& name = plan.spec.name;
  const int self = static_cast<int>(self_->id());
  const absl::Status located = ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(status.message(), " [server ", self, ", ", store_->Directory(plan.job),
                   "; put back what is missing, then: ballastctl jobs retry ", name,
                   "; if nothing can be put back: ballastctl jobs delete ", name, "]"),
      {.job = name, .server = self});
  Add(plan, located);
  return located;
}

absl::Status DamagedJobs::WhyNot(uint64_t job, const Caller& caller) const {
  const Ref damaged = Find(job);
  const bool seen = damaged != nullptr && caller.Sees(damaged->plan.tenant);
  if (!seen) return NoJobHere(job);
  if (!damaged->lacking) return damaged->why;
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob, damaged->why.message(),
                       FieldsOf(damaged->why));
}

void DamagedJobs::Add(const JobPlan& plan, const absl::Status& why) { Put(plan.job, {plan, why}); }

absl::Status DamagedJobs::Lacks(const RolledJob& job, uint32_t other) {
  const int self = static_cast<int>(self_->id());
  const std::string& name = job.name.name;
  const absl::Status why = ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(
          "server ", self, " lacks the files of job \"", name, "\" (", JobIdText(job.job),
          "), which server ", other,
          " has; check that the right storage.data_dir is mounted there, and start server ", self,
          " again; if they are gone for good: ballastctl jobs delete ", name),
      {.job = name, .server = self});
  Entry lacking{.plan = {}, .why = why, .lacking = true};
  lacking.plan.job = job.job;
  lacking.plan.spec.name = name;
  lacking.plan.tenant = job.name.tenant;
  lacking.plan.servers = job.servers;
  lacking.plan.spec.durability = Durability::kPower;  // Or process: of none nothing is on disk.
  Put(job.job, std::move(lacking));
  return why;
}

void DamagedJobs::Put(uint64_t number, Entry job) {
  const Ref before = Find(number);
  if (before == nullptr || before->why != job.why) {
    BALLAST_LOG(ERROR, LogField("run", job.plan.spec.name)) << job.why.message();
  }
  MutexLock lock(&mu_);
  jobs_[number] = std::make_shared<const Entry>(std::move(job));
  Count();
}

void DamagedJobs::RemoveLacking(uint64_t job) {
  const Ref damaged = Find(job);
  if (damaged != nullptr && damaged->lacking) Remove(job);
}

void DamagedJobs::Remove(uint64_t job) {
  MutexLock lock(&mu_);
  jobs_.erase(job);
  Count();
}

void DamagedJobs::Count() {
  if (metrics_ != nullptr) metrics_->damaged_jobs()->Set(static_cast<double>(jobs_.size()));
}

DamagedJobs::Ref DamagedJobs::Find(uint64_t job) const {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : it->second;
}

DamagedJobs::Ref DamagedJobs::Find(const QualifiedName& name) const {
  MutexLock lock(&mu_);
  for (const auto& [job, damaged] : jobs_) {
    if (damaged->plan.name() == name) return damaged;
  }
  return nullptr;
}

std::vector<DamagedJobs::Ref> DamagedJobs::All() const {
  MutexLock lock(&mu_);
  std::vector<Ref> all;
  for (const auto& [job, damaged] : jobs_) all.push_back(damaged);
  return all;
}

}  // namespace ballast::server
