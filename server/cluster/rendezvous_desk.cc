#include "server/cluster/rendezvous_desk.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "server/cluster/home_errors.h"
#include "server/cluster/home_jobs.h"

namespace ballast::server {
namespace {

rendezvous::Epoch EpochOf(const HomeJob& job) {
  const EpochRecord& record = job.plan().epoch;
  rendezvous::Epoch epoch{.number = record.epoch,
                          .sealed = job.stage() == HomeJob::Stage::kSealing};
  for (const Member& member : record.members) {
    epoch.ranks[member.slot] = {member.incarnation, member.identity};
  }
  return epoch;
}

}  // namespace

rendezvous::RendezvousFsm* RendezvousDesk::FsmOf(const HomeJob& job) {
  const auto known = fsms_.find(job.plan().job);
  if (known != fsms_.end()) return &known->second;
  rendezvous::RendezvousFsm fsm(job.plan().spec.name, EpochOf(job), {clock_->Now(), lease_});
  return &fsms_.emplace(job.plan().job, std::move(fsm)).first->second;
}

const HomeJob* RendezvousDesk::FindRunning(uint64_t job) const {
  const HomeJob* const found = find_(job);
  const bool runs = found != nullptr && found->made() && found->stage() != HomeJob::Stage::kEnded;
  return runs ? found : nullptr;
}

void RendezvousDesk::Ask(const RendezvousCall& call, const RendezvousDone& done) {
  const HomeJob* const job = FindRunning(call.job);
  if (job == nullptr || !call.caller.Sees(job->plan().tenant)) {
    return done(home::NoJobOfNumber(call.job));
  }
  rendezvous::Effects effects;
  const rendezvous::Ticket ticket = next_ticket_++;
  calls_[ticket] = done;
  FsmOf(*job)->OnCall(clock_->Now(), ticket, call.call, &effects);
  Do(call.job, effects);
}

void RendezvousDesk::OnHeard(uint64_t job, const Member& rank, const Doing& doing) {
  const HomeJob* const runs = FindRunning(job);
  if (runs == nullptr || !runs->plan().epoch.Holds(rank.slot, rank.incarnation)) return;
  FsmOf(*runs)->OnHeard(rank.slot, {clock_->Now(), doing});
}

void RendezvousDesk::Follow(const HomeJob& job) {
  const uint64_t id = job.plan().job;
  const auto known = fsms_.find(id);
  if (known == fsms_.end()) return;
  if (job.stage() == HomeJob::Stage::kEnded || job.stage() == HomeJob::Stage::kOver) {
    return Forget(id, home::NoJobOfNumber(id));
  }
  rendezvous::Effects effects;
  known->second.OnEpoch(clock_->Now(), EpochOf(job), &effects);
  Do(id, effects);
}

void RendezvousDesk::Forget(uint64_t job, const absl::Status& why) {
  const auto known = fsms_.find(job);
  if (known == fsms_.end()) return;
  rendezvous::Effects effects;
  known->second.OnEnd(why, &effects);
  fsms_.erase(known);
  Do(job, effects);
}

void RendezvousDesk::FailCalls(const absl::Status& why) {
  std::vector<uint64_t> jobs;
  for (const auto& [job, fsm] : fsms_) jobs.push_back(job);
  for (const uint64_t job : jobs) Forget(job, why);
}

void RendezvousDesk::OnDue(uint64_t job) {
  const auto known = fsms_.find(job);
  if (known == fsms_.end()) return;
  rendezvous::Effects effects;
  known->second.OnDue(clock_->Now(), &effects);
  Do(job, effects);
}

void RendezvousDesk::Do(uint64_t job, const rendezvous::Effects& effects) {
  for (const std::chrono::nanoseconds at : effects.wake_at) {
    host_->PostLater(at - clock_->Now(), [this, job] { OnDue(job); });
  }
  for (const rendezvous::Answer& answer : effects.answers) {
    const auto call = calls_.find(answer.ticket);
    BALLAST_CHECK(call != calls_.end());  // A call is answered once.
    const RendezvousDone done = std::move(call->second);
    calls_.erase(call);
    done(answer.reply);
  }
}

}  // namespace ballast::server
