// Home: what other parts ask of the jobs of this cluster, and what befalls these. See home.h.
#include "server/cluster/home.h"

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/reason.h"

namespace ballast::server {
namespace {

absl::Status Busy(const std::string& name, const std::string& why) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy, why, {.job = name});
}

absl::Status Unknown(const std::string& name) {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("there is no job \"", name, "\"; `ballastctl jobs list` shows ",
                                    "those there are"),
                       {.job = name});
}

}  // namespace

// --- Names --------------------------------------------------------------------------------------

absl::StatusOr<JobPlan> Home::WholeJob(const std::string& name) const {
  const auto pending = pending_.find(name);
  const bool made = pending == pending_.end() || pending->second.created;
  if (pending != pending_.end() && made) {
    const uint64_t job = pending->second.plan.job;
    if (parts_.jobs->Runs(job)) return parts_.jobs->Get(job)->plan;
  }
  if (const auto resting = resting_.find(name); made && resting != resting_.end()) {
    JobPlan plan = resting->second;
    plan.resting = false;
    plan.resting_round = 0;
    return plan;
  }
  if (pending == pending_.end()) return Unknown(name);
  return Busy(name, absl::StrCat("job \"", name, "\" ",
                                 made ? "has ended, and nothing of it is on disk"
                                      : "is being attached to; take the snapshot when its "
                                        "trainers have begun"));
}

absl::StatusOr<JobPlan> Home::MadeJob(const std::string& name) const {
  const auto pending = pending_.find(name);
  const auto resting = resting_.find(name);
  if (pending != pending_.end() && !pending->second.created) {
    return Busy(name,
                absl::StrCat("trainers are attaching to job \"", name, "\"; stop them first"));
  }
  if (pending != pending_.end()) return pending->second.plan;
  if (resting != resting_.end()) return resting->second;
  return Unknown(name);
}

bool Home::HasName(const std::string& name) const {
  return pending_.count(name) != 0 || resting_.count(name) != 0;
}

// --- What befalls jobs --------------------------------------------------------------------------

void Home::OnJobFound(const JobPlan& plan) {
  if (!parts_.self->IsHome()) return;
  if (plan.resting) {
    resting_[plan.spec.name] = plan;
    return;
  }
  JobPlan made = plan;
  made.making = false;
  Pending& pending = pending_.emplace(plan.spec.name, Pending(made)).first->second;
  pending.generation = next_generation_++;
  pending.created = pending.unconfirmed = !plan.making;
  pending.creating = plan.making;
}

void Home::OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) {
  if (rests && parts_.self->IsHome()) resting_[plan.spec.name] = plan;
  const auto pending = pending_.find(plan.spec.name);
  if (pending == pending_.end() || pending->second.plan.job != plan.job) return;
  pending->second.unconfirmed = false;
  if (plan.resting && ReasonOf(why) == Reason::kJobFinished) AskAgain(&pending->second);
  FailPending(&pending->second, why);
}

// Processes that wait for a seat of a job that all have left go on with it when they call again.
void Home::AskAgain(Pending* pending) {
  const std::string& name = pending->plan.spec.name;
  for (auto& [slot, waiting] : std::exchange(pending->waiting, {})) {
    waiting.done(ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                               absl::StrCat("job \"", name, "\" has just come to rest"),
                               {.job = name, .slot = static_cast<int>(slot)}));
  }
}

void Home::OnJobDropped(const JobPlan& plan) {
  const auto pending = pending_.find(plan.spec.name);
  if (pending == pending_.end() || pending->second.plan.job != plan.job) return;
  if (pending->second.created) pending_.erase(pending);
}

void Home::OnJobForgotten(uint64_t job) {
  std::erase_if(resting_, [job](const auto& entry) { return entry.second.job == job; });
}

void Home::PeerLost(uint32_t server, const std::string& why) {
  for (auto& [name, pending] : pending_) {
    // Seats of a durable job are waited for; its servers come back.
    if (pending.created && pending.plan.spec.durability != Durability::kNone) continue;
    FailPending(&pending, ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                        absl::StrCat("server ", server, " was lost (", why,
                                                     "); attach again, which waits for it"),
                                        {.server = static_cast<int>(server)}));
  }
  std::erase_if(pending_, [](const auto& entry) { return !entry.second.created; });
}

void Home::Stop(const absl::Status& why) {
  for (auto& [name, pending] : pending_) FailPending(&pending, why);
}

void Home::DropAtPeer(uint32_t server, uint64_t job) {
  parts_.peers->DropJob(server, job, [server](const absl::Status& status) {
    if (status.ok()) return;
    BALLAST_LOG(WARN, LogField("server", server)) << "cannot drop a job there: " << status;
  });
}

// --- Status -------------------------------------------------------------------------------------

// A job that is not made yet, or a variable world that comes together to begin again.
bool Home::IsAttaching(const Pending& pending) {
  const bool made = pending.created || pending.creating;
  return !made || (pending.gathers && !pending.newcomers.empty());
}

JobStatus Home::AttachingStatus(const std::string& name, const Pending& pending) const {
  JobStatus job{.name = name, .job = pending.plan.job, .state = "attaching"};
  const Gathering gathering = GatheringOf(pending);
  job.world = pending.gathers ? gathering.world : pending.home.spec().world;
  for (uint32_t s = 0; s < job.world; ++s) job.slots.push_back({.slot = s, .state = "attached"});
  for (const uint32_t s : pending.gathers ? gathering.Missing() : pending.home.MissingSlots()) {
    job.slots[s].state = "absent";
  }
  return job;
}

std::vector<JobStatus> Home::Attaching() const {
  std::vector<JobStatus> jobs;
  for (const auto& [name, pending] : pending_) {
    if (IsAttaching(pending)) jobs.push_back(AttachingStatus(name, pending));
  }
  return jobs;
}

}  // namespace ballast::server
