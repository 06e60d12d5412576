#include "server/directory/roll_call.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/jobs/when_all.h"

namespace ballast::server {
namespace {

// How soon a home that did not answer is asked again, and one that did, while something is lacking.
constexpr std::chrono::milliseconds kUnanswered{500};
constexpr std::chrono::seconds kLacking{10};

// As long as a job may be one whose creation was broken off, no other server must have it.
bool MayHaveBegun(const JobPlan& plan) {
  return plan.resting ? plan.resting_round > 1 || plan.epoch.epoch > 1 : true;
}

RolledJob Rolled(const JobPlan& plan) {
  return {plan.job, plan.name(), plan.servers, MayHaveBegun(plan)};
}

bool Has(const std::vector<uint32_t>& servers, uint32_t server) {
  return std::binary_search(servers.begin(), servers.end(), server);
}

const RolledJob* FindIn(const std::vector<RolledJob>& jobs, uint64_t job) {
  const auto found =
      std::find_if(jobs.begin(), jobs.end(), [job](const auto& one) { return one.job == job; });
  return found == jobs.end() ? nullptr : &*found;
}

}  // namespace

// --- At a server other than the home -------------------------------------------------------------

void RollCall::Begin() {
  if (parts_.self->IsHome() || parts_.self->stopping() || std::exchange(asks_, true)) return;
  absl::StatusOr<JobRoll> own = Own();
  if (!own.ok()) {
    BALLAST_LOG(WARN) << "cannot compare jobs with the home: " << own.status();
    asks_ = false;
    return;
  }
  // Of a job that runs in its first epoch, only its engine knows whether a round is over.
  const auto roll = std::make_shared<JobRoll>(*std::move(own));
  std::vector<std::shared_ptr<RoundEngine>> young;
  for (const auto& [id, job] : parts_.jobs->all()) {
    const auto engine = parts_.jobs->Find(id);
    if (engine != nullptr && job.plan.epoch.epoch == 1) young.push_back(engine);
  }
  const auto answers = std::make_shared<WhenAll>(
      young.size(), [this, roll](const absl::Status&) { Ask(std::move(*roll)); });
  for (const auto& engine : young) {
    parts_.jobs->Ask(engine, [roll, answers](const JobStatus& status) {
      for (RolledJob& job : roll->jobs) {
        if (job.job == status.job) job.begun = status.round > 1;
      }
      answers->Add(absl::OkStatus());
    });
  }
}

absl::StatusOr<JobRoll> RollCall::Own() const {
  JobRoll roll{.server = parts_.self->id()};
  if (parts_.store == nullptr) return roll;
  BALLAST_ASSIGN_OR_RETURN(const std::vector<JobPlan> plans, parts_.store->All());
  for (const JobPlan& plan : plans) {
    // A newly added server may be the home now; it has nothing of this job.
    if (plan.servers.front() == parts_.self->home().id) roll.jobs.push_back(Rolled(plan));
  }
  return roll;
}

void RollCall::Ask(JobRoll roll) {
  parts_.peers->CompareJobs(
      parts_.self->home().id, roll,
      parts_.strand->Bind([this](const absl::StatusOr<RollAnswer>& answer) { OnAnswer(answer); }));
}

void RollCall::OnAnswer(const absl::StatusOr<RollAnswer>& answer) {
  const bool older = absl::IsUnimplemented(answer.status());  // A home that compares nothing.
  bool again = !answer.ok() && !older;
  if (answer.ok()) {
    ForgetThoseThatAre({.jobs = answer->lacking});
    for (const RolledJob& job : answer->lacking) {
      // It may have come meanwhile.
      const bool here = parts_.store != nullptr && parts_.store->Find(job.job).ok();
      if (here || forgotten_.contains(job.job)) continue;
      parts_.damaged->Lacks(job, parts_.self->home().id).IgnoreError();  // Logged.
    }
    again = !answer->lacking.empty() || !answer->unknown.empty();
  }
  if (!again) {
    asks_ = false;
    return;
  }
  const std::chrono::milliseconds delay = answer.ok() ? kLacking : kUnanswered;
  parts_.strand->PostAfter(delay, [this] {
    asks_ = false;
    Begin();
  });
}

void RollCall::ForgetThoseThatAre(const JobRoll& roll) const {
  for (const DamagedJobs::Ref& damaged : parts_.damaged->All()) {
    const uint64_t job = damaged->plan.job;
    if (FindIn(roll.jobs, job) == nullptr) parts_.damaged->RemoveLacking(job);
  }
}

// --- At the home --------------------------------------------------------------------------------

void RollCall::WhichRest(std::vector<uint64_t> jobs,
                         std::function<void(absl::StatusOr<std::vector<uint64_t>>)> done) {
  parts_.strand->Post([this, jobs = std::move(jobs), done = std::move(done)] {
    if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return done(st);
    const absl::flat_hash_set<uint64_t> asked(jobs.begin(), jobs.end());
    std::vector<uint64_t> rest;
    for (const auto& [name, plan] : parts_.resting->all()) {
      const HomeJob* const home = parts_.homes->Find(name);
      // It is being woken, or peers may still have to hear of its growth.
      const bool moves = home != nullptr && (!home->made() || home->growing());
      if (!moves && asked.contains(plan.job)) rest.push_back(plan.job);
    }
    done(std::move(rest));
  });
}

void RollCall::CompareJobs(JobRoll roll, std::function<void(absl::StatusOr<RollAnswer>)> done) {
  parts_.strand->Post([this, roll = std::move(roll), done = std::move(done)] {
    const absl::Status home = parts_.self->CheckHome();
    home.ok() ? done(Compare(roll)) : done(home);
  });
}

absl::StatusOr<RollAnswer> RollCall::Compare(const JobRoll& roll) const {
  std::vector<JobPlan> plans;
  if (parts_.store != nullptr) {
    BALLAST_ASSIGN_OR_RETURN(plans, parts_.store->All());
  }
  RollAnswer answer;
  for (const JobPlan& plan : plans) {
    parts_.damaged->RemoveLacking(plan.job);
    const bool owed = !plan.making && Has(plan.servers, roll.server);
    if (owed && FindIn(roll.jobs, plan.job) == nullptr) answer.lacking.push_back(Rolled(plan));
  }
  for (const DamagedJobs::Ref& damaged : parts_.damaged->All()) {
    const bool gone = FindIn(roll.jobs, damaged->plan.job) == nullptr;
    if (gone && Has(damaged->plan.servers, roll.server)) {
      parts_.damaged->RemoveLacking(damaged->plan.job);
    }
  }
  for (const RolledJob& job : roll.jobs) {
    const bool known = std::any_of(plans.begin(), plans.end(),
                                   [&](const JobPlan& plan) { return plan.job == job.job; });
    // A job being made here of a snapshot gets its record at last.
    const bool made = parts_.store != nullptr && parts_.store->IsOrdered(job.job);
    const bool mine = job.begun && job.servers.front() == parts_.self->id();
    if (known || made || !mine || forgotten_.contains(job.job)) continue;
    parts_.damaged->Lacks(job, roll.server).IgnoreError();  // Logged.
    answer.unknown.push_back(job.job);
  }
  return answer;
}

}  // namespace ballast::server
