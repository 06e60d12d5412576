// Home: calls of other parts about jobs of this cluster, and events of these jobs. See home.h.
#include "server/directory/home.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/directory/counted_attach.h"
#include "server/home/home_errors.h"

namespace ballast::server {
namespace {

absl::Status Busy(const std::string& name, const std::string& why) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy, why, {.job = name});
}

}  // namespace

// --- Calls --------------------------------------------------------------------------------------

void Home::Attach(const AttachCall& call, const AttachDone& done) {
  absl::Status status = parts_.self->CheckHome();
  if (status.ok()) status = ValidateJobSpec(call.spec, parts_.self->config().limits);
  if (status.ok() && homes_.Find(call.name()) == nullptr) status = WhyNotOpen(call.name());
  if (!status.ok()) return done(status);
  const absl::StatusOr<AttachDone> counted = CountAttach(parts_.self->config().quotas, call, done);
  counted.ok() ? homes_.Attach(call, *counted) : done(counted.status());
}

void Home::AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) {
  homes_.HangUp(job, slot, call);
}

void Home::Extend(const ExtendCall& call, const ExtendDone& done) {
  const absl::Status status = parts_.self->CheckHome();
  status.ok() ? homes_.Extend(call, done) : done(status);
}

void Home::Rendezvous(const RendezvousCall& call, const RendezvousDone& done) {
  const absl::Status status = parts_.self->CheckHome();
  status.ok() ? homes_.rendezvous()->Ask(call, done) : done(status);
}

void Home::WhichRest(const std::vector<uint64_t>& jobs,
                     const std::function<void(absl::StatusOr<std::vector<uint64_t>>)>& done) const {
  if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return done(st);
  const absl::flat_hash_set<uint64_t> asked(jobs.begin(), jobs.end());
  std::vector<uint64_t> rest;
  for (const auto& [name, plan] : resting_) {
    const HomeJob* const home = homes_.Find(name);
    // It is being woken, or peers may still have to hear of its growth.
    const bool moves = home != nullptr && (!home->made() || home->growing());
    if (!moves && asked.contains(plan.job)) rest.push_back(plan.job);
  }
  done(std::move(rest));
}

void Home::MakeForHome(const JobPlan& plan, const std::function<void(absl::Status)>& done) {
  missed_ends_.MakeForHome(plan, done);
}

absl::StatusOr<RollAnswer> Home::CompareJobs(const JobRoll& roll) const {
  if (absl::Status st = parts_.self->CheckHome(); !st.ok()) return st;
  return roll_call_.Compare(roll);
}

void Home::StartRecovered() {
  missed_ends_.AskUntilAnswered();
  roll_call_.Begin();
  homes_.Start();
}

// A home that comes back may have come without its data directory.
void Home::PeerLost(uint32_t server, const std::string& why) {
  homes_.OnPeerLost(server, why);
  if (server == parts_.self->home().id) roll_call_.Begin();
}

// --- Names --------------------------------------------------------------------------------------

absl::StatusOr<JobPlan> Home::WholeJob(const QualifiedName& name) const {
  const HomeJob* const home = homes_.Find(name);
  const bool made = home == nullptr || home->made();
  if (home != nullptr && made && parts_.jobs->Runs(home->plan().job)) {
    return parts_.jobs->Get(home->plan().job)->plan;
  }
  if (const JobPlan* const resting = Resting(name); made && resting != nullptr) {
    JobPlan plan = *resting;
    plan.resting = false;
    plan.resting_round = 0;
    return plan;
  }
  if (home == nullptr) {
    const absl::Status why = WhyNotOpen(name);
    return why.ok() ? NoJobOfName(name.name) : why;
  }
  return Busy(name.name, absl::StrCat("job \"", name.name, "\" ",
                                      made ? "has ended, and nothing of it is on disk"
                                           : "is being attached to; take the snapshot when its "
                                             "trainers have begun"));
}

absl::StatusOr<JobPlan> Home::MadeJob(const QualifiedName& name) const {
  const HomeJob* const home = homes_.Find(name);
  if (home != nullptr && !home->made()) {
    return Busy(name.name,
                absl::StrCat("trainers are attaching to job \"", name.name, "\"; stop them first"));
  }
  if (home != nullptr) return home->plan();
  if (const JobPlan* const resting = Resting(name); resting != nullptr) return *resting;
  if (const auto damaged = parts_.damaged->Find(name); damaged != nullptr) {
    return damaged->plan;
  }
  return NoJobOfName(name.name);
}

bool Home::HasName(const QualifiedName& name) const {
  return homes_.Find(name) != nullptr || Resting(name) != nullptr ||
         parts_.damaged->Find(name) != nullptr;
}

// A job that rests is opened when trainers wake it.
absl::Status Home::WhyNotOpen(const QualifiedName& name) const {
  const DamagedJobs::Ref damaged = parts_.damaged->Find(name);
  return damaged == nullptr || damaged->plan.resting ? absl::OkStatus() : damaged->why;
}

const JobPlan* Home::Resting(const QualifiedName& name) const {
  const auto it = resting_.find(name);
  return it == resting_.end() ? nullptr : &it->second;
}

// --- Events of jobs ------------------------------------------------------------------------------

void Home::OnJobFound(const JobPlan& plan) {
  if (!parts_.self->IsHome()) return;
  if (plan.resting) {
    resting_[plan.name()] = plan;
    return;
  }
  JobPlan made = plan;
  made.making = false;
  homes_.Recover(made, plan.making);
}

void Home::OnJobReopened(const JobPlan& plan) {
  OnJobFound(plan);
  parts_.self->IsHome() ? homes_.Start(plan.name()) : missed_ends_.AskSoon();
}

void Home::OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) {
  if (rests && parts_.self->IsHome()) resting_[plan.name()] = plan;
  homes_.OnEnded(plan, {why, plan.resting});
}

void Home::OnJobForgotten(uint64_t job) {
  roll_call_.OnForgotten(job);
  std::erase_if(resting_, [job](const auto& entry) { return entry.second.job == job; });
}

// A peer asks its home soon: the job may rest there.
void Home::OnSeatFree(const QualifiedName& name, uint32_t slot, uint64_t incarnation, bool left) {
  if (!parts_.self->IsHome()) missed_ends_.AskSoon();
  homes_.OnSeatFree(name, {slot, incarnation, left});
}

// At the home, as long as a peer may say of a job that it has ended, the answer is to wait for
// that.
absl::Status Home::NoRoom(const JobPlan& plan, const absl::Status& why) const {
  const DirectoryConfig& config = parts_.self->config();
  // A tenant's quota is freed by its own jobs only.
  const bool over_quota = ReasonOf(why) == Reason::kOverQuota;
  const HomeJob* const unconfirmed = homes_.FindUnconfirmed(over_quota ? &plan.tenant : nullptr);
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
