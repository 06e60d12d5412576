#include "server/home/home_jobs.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/job/new_names.h"
#include "common/text/names.h"
#include "server/home/home_errors.h"

namespace ballast::server {
namespace {

home::Rules RulesOf(const DirectoryConfig& config) {
  home::Rules rules{
      .self = config.self,
      .incarnation = config.incarnation,
      .limits = config.limits,
      .attach_timeout = config.attach_timeout,
      .takeover_wait = config.takeover_wait,
      .lease = config.engine.lease,
      .trainerless = std::max<std::chrono::nanoseconds>(config.job_ttl, config.engine.lease)};
  for (const ServerAddress& server : config.servers) rules.servers.push_back(server.id);
  return rules;
}

}  // namespace

HomeJobs::HomeJobs(const Parts& parts)
    : parts_(parts),
      config_(parts.self->config()),
      rules_(RulesOf(config_)),
      places_(&config_, parts.under_way) {}

// --- Calls of trainers --------------------------------------------------------------------------

void HomeJobs::Attach(AttachCall call, AttachDone done) {
  parts_.strand->Post([this, call = std::move(call), done = std::move(done)] {
    absl::Status status = parts_.self->CheckHome();
    if (status.ok()) status = ValidateJobSpec(call.spec, config_.limits);
    if (status.ok() && homes_.Find(call.name()) == nullptr) {
      status = parts_.damaged->CheckOpen(call.name());
    }
    if (!status.ok()) return done(status);
    const absl::StatusOr<AttachDone> counted = CountAttach(config_.quotas, call, done);
    counted.ok() ? Seat(call, *counted) : done(counted.status());
  });
}

absl::Status HomeJobs::CheckPlaces(const AttachCall& call) {
  BALLAST_RETURN_IF_ERROR(places_.CheckPending(call, homes_.Pending(call.caller.tenant())));
  JobRoom room = places_.Room(call, homes_.CountByTenant());
  // Its own ended jobs first; those of other tenants only where the server has no place at all.
  const std::string tenant = call.caller.tenant();
  if (room != JobRoom::kFree && parts_.shares->DropEnded(&tenant)) {
    room = places_.Room(call, homes_.CountByTenant());
  }
  if (room == JobRoom::kFull) parts_.shares->DropEnded(/*tenant=*/nullptr);
  return places_.Check(call, homes_.CountByTenant());
}

void HomeJobs::Seat(const AttachCall& call, const AttachDone& done) {
  const QualifiedName name = call.name();
  if (const auto at = released_.find(name); at != released_.end()) {
    return at->second.push_back({call, done});
  }
  if (const HomeJob* const job = homes_.Find(name); job != nullptr) {
    const bool durable = IsDurable(job->plan());
    const bool wake = durable && call.resume != Resume::kNever;
    if (job->StartsAnew(call)) {
      if (const absl::Status status = CheckNewNames(call.spec.tensors); !status.ok()) {
        return done(status);
      }
      Remove(name);
    } else if (wake && job->phase() == HomeJob::Phase::kEnded) {
      parts_.shares->Drop(job->plan().job);
    }
  }
  if (homes_.Find(name) != nullptr) return FeedPresent(name, Ask(call, done));
  if (const JobPlan* const rests = parts_.resting->Find(name); rests != nullptr) {
    return Wake(*rests, call, done);
  }
  if (call.resume == Resume::kMust) return done(home::NoJobToResume(name.name));
  if (const absl::Status status = CheckNewNames(call.spec.tensors); !status.ok()) {
    return done(status);
  }
  if (const absl::Status full = CheckPlaces(call); !full.ok()) return done(full);
  Feed(Add(HomeJob::New(&rules_, call)), Ask(call, done));
}

// A job that ended lies on disk at every server; the process that asks makes them open it again.
void HomeJobs::Wake(JobPlan plan, const AttachCall& call, const AttachDone& done) {
  if (call.resume == Resume::kNever) return done(home::NameTaken(call, plan, /*ended=*/true));
  // A job that was being woken when a peer was lost runs here. A snapshot of a job that runs is no
  // obstacle.
  const bool runs = parts_.shares->Runs(plan.job);
  if (absl::Status held = parts_.resting->CheckFree(plan, runs); !held.ok()) return done(held);
  plan.resting = false;
  plan.resting_round = 0;
  const Life to = Add(HomeJob::Woken(&rules_, plan));
  Feed(to, Ask(call, done));
  Feed(to, home::StartInput{});
}

home::AttachInput HomeJobs::Ask(const AttachCall& call, const AttachDone& done) {
  const home::Ticket ticket = next_ticket_++;
  attaches_[ticket] = done;
  return {ticket, call};
}

void HomeJobs::AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) {
  parts_.strand->Post([=, this] { FeedPresent(job, home::HangUpInput{slot, call}); });
}

void HomeJobs::Extend(ExtendCall call, ExtendDone done) {
  parts_.strand->Post([this, call = std::move(call), done = std::move(done)] {
    if (const absl::Status status = parts_.self->CheckHome(); !status.ok()) return done(status);
    const HomeJob* const job = homes_.Find(call.job);
    if (job == nullptr || !job->made() || !call.caller.Sees(job->plan().tenant)) {
      return done(home::NoJobOfNumber(call.job));
    }
    const home::Ticket ticket = next_ticket_++;
    extends_[ticket] = done;
    FeedPresent(job->plan().name(), home::ExtendInput{ticket, call});
  });
}

void HomeJobs::Rendezvous(RendezvousCall call, RendezvousDone done) {
  parts_.strand->Post([this, call = std::move(call), done = std::move(done)] {
    const absl::Status status = parts_.self->CheckHome();
    status.ok() ? rendezvous_.Ask(call, done) : done(status);
  });
}

void HomeJobs::Heard(DoingReport report) {
  if (!reports_.Put(std::move(report))) return;
  parts_.strand->Post([this] {
    for (const DoingReport& one : reports_.Take()) rendezvous_.OnHeard(one);
  });
}

// --- Jobs known to this server -------------------------------------------------------------------

void HomeJobs::Recover(const JobPlan& plan, bool making) {
  Add(HomeJob::Recovered(&rules_, plan, making));
}

void HomeJobs::Start() { FeedAll(home::StartInput{}); }

void HomeJobs::Start(const QualifiedName& name) { FeedPresent(name, home::StartInput{}); }

void HomeJobs::OnSeatFree(const QualifiedName& name, const home::SeatFreeInput& input) {
  FeedPresent(name, input);
}

void HomeJobs::OnEnded(const JobPlan& plan, const home::EndedInput& input) {
  const HomeJob* const job = homes_.Find(plan.name());
  if (job != nullptr && job->plan().job == plan.job) FeedPresent(plan.name(), input);
}

void HomeJobs::OnReleased(const JobPlan& plan) {
  const HomeJob* const job = homes_.Find(plan.name());
  if (job == nullptr || !job->made() || job->plan().job != plan.job) return;
  // Nothing waits at the end of a job, but for a call that came after it.
  FeedPresent(plan.name(), home::FailInput{parts_.self->NoDurableJob(plan.job)});
  rendezvous_.Forget(plan.job, home::NoJobOfNumber(plan.job));
  Remove(plan.name());
}

void HomeJobs::OnPeerLost(uint32_t server, const std::string& why) {
  FeedAll(home::PeerLostInput{server, why});
}

void HomeJobs::FailCalls(const absl::Status& status) {
  rendezvous_.FailCalls(status);
  FeedAll(home::FailInput{status});
}

// --- Feeding ------------------------------------------------------------------------------------

HomeJobs::Life HomeJobs::Add(HomeJob job) {
  places_.Change(UnderWay(job));
  return homes_.Add(std::move(job));
}

void HomeJobs::Remove(const QualifiedName& name) {
  if (const HomeJob* const job = homes_.Find(name); job != nullptr) places_.Change(-UnderWay(*job));
  timers_.Drop(name);
  homes_.Remove(name);
}

void HomeJobs::Feed(const Life& to, const home::Input& input) {
  HomeTable::Entry* const home = homes_.At(to);
  if (home == nullptr) return;  // The job is over.
  HomeJob& job = home->job;
  const int before = UnderWay(job);
  home::Effects effects;
  job.Step(parts_.clock->Now(), input, &effects);
  places_.Change(UnderWay(job) - before);
  rendezvous_.Follow(job);
  if (job.phase() == HomeJob::Phase::kOver) Remove(to.name);
  for (const home::Effect& effect : effects) {
    std::visit([&](const auto& one) { Do(to, one); }, effect);
  }
}

void HomeJobs::FeedPresent(const QualifiedName& name, const home::Input& input) {
  if (const HomeTable::Entry* const home = homes_.At(name); home != nullptr) {
    Feed({name, home->life}, input);
  }
}

void HomeJobs::FeedAll(const home::Input& input) {
  std::vector<Life> lives;
  for (const auto& [name, home] : homes_.all()) lives.push_back({name, home.life});
  for (const Life& life : lives) Feed(life, input);
}

HomeJobs::Feeder HomeJobs::Later(const Life& to) {
  return parts_.strand->Bind([this, to](const home::Input& input) { Feed(to, input); });
}

}  // namespace ballast::server
