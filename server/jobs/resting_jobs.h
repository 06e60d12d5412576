// RestingJobs: at the home, the durable jobs that are kept on disk only, or ended a moment ago, and
// those of which a snapshot is being taken. At another server it is empty.
// Comes from: Directory. Goes to: the parts at the home. Thread safety: owned by the directory's
// strand.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/round/round_types.h"

namespace ballast::server {

class RestingJobs {
 public:
  const std::map<QualifiedName, JobPlan>& all() const { return resting_; }
  // Null: no job of that name rests. Valid until the job rests no more.
  const JobPlan* Find(const QualifiedName& name) const {
    const auto it = resting_.find(name);
    return it == resting_.end() ? nullptr : &it->second;
  }
  void Add(const JobPlan& plan) { resting_[plan.name()] = plan; }
  void Remove(const QualifiedName& name) { resting_.erase(name); }
  void Forget(uint64_t job) {
    std::erase_if(resting_, [job](const auto& entry) { return entry.second.job == job; });
  }

  // A snapshot is taken of the job, running or not, until EndSnapshot. False: one is taken already.
  bool BeginSnapshot(uint64_t job) { return snapshots_.insert(job).second; }
  void EndSnapshot(uint64_t job) { snapshots_.erase(job); }
  // UNAVAILABLE RECOVERING for a job that rests, to be woken or deleted, while a snapshot is taken
  // of it. `runs`: it runs at this server; then a snapshot is no obstacle.
  absl::Status CheckFree(const JobPlan& plan, bool runs) const {
    if (runs || !snapshots_.contains(plan.job)) return absl::OkStatus();
    return ReasonedError(
        absl::StatusCode::kUnavailable, Reason::kRecovering,
        absl::StrCat("a snapshot of job \"", plan.spec.name,
                     "\", which rests, is being taken; call again when it is there"),
        {.job = plan.spec.name});
  }

 private:
  std::map<QualifiedName, JobPlan> resting_;
  std::set<uint64_t> snapshots_;  // jobs of which one is taken
};

}  // namespace ballast::server
