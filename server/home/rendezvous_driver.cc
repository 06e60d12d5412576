#include "server/home/rendezvous_driver.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "server/home/home_errors.h"

namespace ballast::server {
namespace {

// How far ahead a timer is set, and how many of one job are set at a time.
constexpr std::chrono::seconds kLookMax{10};
constexpr size_t kLooksMax = 64;

rendezvous::Epoch EpochOf(const HomeJob& job) {
  const EpochRecord& record = job.plan().epoch;
  rendezvous::Epoch epoch{.number = record.epoch,
                          .sealed = job.phase() == HomeJob::Phase::kSealing};
  for (const Member& member : record.members) {
    epoch.ranks[member.slot] = {member.incarnation, member.identity};
  }
  return epoch;
}

}  // namespace

rendezvous::RendezvousFsm* RendezvousDriver::FsmOf(const HomeJob& job) {
  const auto known = served_.find(job.plan().job);
  if (known != served_.end()) return &known->second.fsm;
  Served served{.fsm = {job.plan().spec.name, EpochOf(job), {clock_->Now(), lease_}}};
  return &served_.emplace(job.plan().job, std::move(served)).first->second.fsm;
}

const HomeJob* RendezvousDriver::FindRunning(uint64_t job) const {
  const HomeJob* const found = homes_->Find(job);
  const bool runs = found != nullptr && found->made() && found->phase() != HomeJob::Phase::kEnded;
  return runs ? found : nullptr;
}

void RendezvousDriver::Ask(const RendezvousCall& call, const RendezvousDone& done) {
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

void RendezvousDriver::OnHeard(const DoingReport& report) {
  const HomeJob* const runs = FindRunning(report.job);
  const Member& rank = report.rank;
  if (runs == nullptr || !runs->plan().epoch.Holds(rank.slot, rank.incarnation)) return;
  FsmOf(*runs)->OnHeard(rank.slot, {clock_->Now(), report.doing});
}

void RendezvousDriver::Follow(const HomeJob& job) {
  const uint64_t id = job.plan().job;
  const auto known = served_.find(id);
  if (known == served_.end()) return;
  if (job.phase() == HomeJob::Phase::kEnded || job.phase() == HomeJob::Phase::kOver) {
    return Forget(id, home::NoJobOfNumber(id));
  }
  rendezvous::Effects effects;
  known->second.fsm.OnEpoch(clock_->Now(), EpochOf(job), &effects);
  Do(id, effects);
}

void RendezvousDriver::Forget(uint64_t job, const absl::Status& why) {
  const auto known = served_.find(job);
  if (known == served_.end()) return;
  rendezvous::Effects effects;
  known->second.fsm.OnEnd(why, &effects);
  served_.erase(known);
  Do(job, effects);
}

void RendezvousDriver::FailCalls(const absl::Status& why) {
  std::vector<uint64_t> jobs;
  for (const auto& [job, served] : served_) jobs.push_back(job);
  for (const uint64_t job : jobs) Forget(job, why);
}

void RendezvousDriver::LookInTime(uint64_t job) {
  const auto known = served_.find(job);
  if (known == served_.end()) return;
  const std::chrono::nanoseconds due = known->second.fsm.next_due();
  if (due == std::chrono::nanoseconds::max()) return;
  const std::chrono::nanoseconds now = clock_->Now();
  const std::chrono::nanoseconds at = std::min(due, now + kLookMax);
  std::set<std::chrono::nanoseconds>& looks = known->second.looks;
  if (!looks.empty() && (*looks.begin() <= at || looks.size() >= kLooksMax)) return;
  looks.insert(at);
  strand_->PostAfter(at - now, [this, job, at] { OnDue(job, at); });
}

void RendezvousDriver::OnDue(uint64_t job, std::chrono::nanoseconds at) {
  const auto known = served_.find(job);
  if (known == served_.end() || known->second.looks.erase(at) == 0) return;
  rendezvous::Effects effects;
  known->second.fsm.OnDue(clock_->Now(), &effects);
  Do(job, effects);
}

void RendezvousDriver::Do(uint64_t job, const rendezvous::Effects& effects) {
  LookInTime(job);
  for (const rendezvous::Answer& answer : effects.answers) {
    const auto call = calls_.find(answer.ticket);
    BALLAST_CHECK(call != calls_.end());  // A call is answered once.
    const RendezvousDone done = std::move(call->second);
    calls_.erase(call);
    done(answer.reply);
  }
}

}  // namespace ballast::server
