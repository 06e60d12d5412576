#include "server/home/home_jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/job/new_names.h"
#include "common/text/names.h"
#include "server/home/home_errors.h"
#include "server/jobs/this_server.h"

namespace ballast::server {
namespace {

home::Rules RulesOf(const DirectoryConfig& config) {
  home::Rules rules{
      .self = config.self,
      .limits = config.limits,
      .attach_timeout = config.attach_timeout,
      .takeover_wait = config.takeover_wait,
      .lease = config.engine.lease,
      .trainerless = std::max<std::chrono::nanoseconds>(config.job_ttl, config.engine.lease)};
  for (const ServerAddress& server : config.servers) rules.servers.push_back(server.id);
  return rules;
}

// Takes the call of that ticket out of `calls`.
template <typename Done>
Done Take(std::map<home::Ticket, Done>* calls, home::Ticket ticket) {
  const auto it = calls->find(ticket);
  BALLAST_CHECK(it != calls->end());  // A call is answered once.
  Done done = std::move(it->second);
  calls->erase(it);
  return done;
}

}  // namespace

HomeJobs::HomeJobs(const DirectoryConfig& config, const Clock* clock, PeerLink* peers,
                   HomeHost* host, Gauge* under_way)
    : config_(config),
      rules_(RulesOf(config)),
      clock_(clock),
      peers_(peers),
      host_(host),
      places_(&config_, under_way) {}

// --- Calls of trainers --------------------------------------------------------------------------

absl::Status HomeJobs::CheckPlaces(const AttachCall& call) {
  BALLAST_RETURN_IF_ERROR(places_.CheckPending(call, Pending(homes_, call.caller.tenant())));
  if (places_.Free(call, CountsOf(homes_))) return absl::OkStatus();
  host_->ReleaseEnded();
  return places_.Check(call, CountsOf(homes_));
}

void HomeJobs::Attach(const AttachCall& call, const AttachDone& done) {
  const QualifiedName name = call.name();
  if (const HomeJob* const job = Find(name); job != nullptr) {
    const bool durable = job->plan().spec.durability != Durability::kNone;
    const bool wake = durable && call.resume != Resume::kNever;
    if (job->StartsAnew(call)) {
      if (const absl::Status status = CheckNewNames(call.spec.tensors); !status.ok()) {
        return done(status);
      }
      places_.Change(-UnderWay(*job));
      timers_.Drop(name);
      homes_.erase(name);
    } else if (wake && job->stage() == HomeJob::Stage::kEnded) {
      host_->ReleaseHere(job->plan().job);
    }
  }
  if (const auto known = homes_.find(name); known != homes_.end()) {
    return Feed({name, known->second.life}, Ask(call, done));
  }
  if (const JobPlan* const rests = host_->Resting(name); rests != nullptr) {
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
  if (const absl::Status held = host_->HeldAtRest(plan); !held.ok()) return done(held);
  plan.resting = false;
  plan.resting_round = 0;
  const Life to = Add(HomeJob::Woken(&rules_, plan));
  Feed(to, Ask(call, done));
  Feed(to, home::StartInput{});
}

void HomeJobs::HangUp(const QualifiedName& job, uint32_t slot, uint64_t call) {
  const auto it = homes_.find(job);
  if (it != homes_.end()) Feed({job, it->second.life}, home::HangUpInput{slot, call});
}

void HomeJobs::Extend(const ExtendCall& call, const ExtendDone& done) {
  const auto it = std::find_if(homes_.begin(), homes_.end(), [&](const auto& entry) {
    return entry.second.job.made() && entry.second.job.plan().job == call.job;
  });
  if (it == homes_.end() || !call.caller.Sees(it->second.job.plan().tenant)) {
    return done(home::NoJobOfNumber(call.job));
  }
  const home::Ticket ticket = next_ticket_++;
  extends_[ticket] = done;
  Feed({it->first, it->second.life}, home::ExtendInput{ticket, call});
}

home::AttachInput HomeJobs::Ask(const AttachCall& call, const AttachDone& done) {
  const home::Ticket ticket = next_ticket_++;
  attaches_[ticket] = done;
  return {ticket, call};
}

// --- Jobs known to this server -------------------------------------------------------------------

void HomeJobs::Recover(const JobPlan& plan, bool making) {
  Add(HomeJob::Recovered(&rules_, plan, making));
}

void HomeJobs::Start() { FeedAll(home::StartInput{}); }

void HomeJobs::Start(const QualifiedName& name) {
  Feed({name, homes_.at(name).life}, home::StartInput{});
}

void HomeJobs::OnSeatFree(const QualifiedName& name, const home::SeatFreeInput& input) {
  const auto it = homes_.find(name);
  if (it != homes_.end()) Feed({name, it->second.life}, input);
}

void HomeJobs::OnEnded(const JobPlan& plan, const home::EndedInput& input) {
  const auto it = homes_.find(plan.name());
  if (it == homes_.end() || it->second.job.plan().job != plan.job) return;
  Feed({it->first, it->second.life}, input);
}

void HomeJobs::OnReleased(const JobPlan& plan) {
  const auto it = homes_.find(plan.name());
  if (it == homes_.end()) return;
  const HomeJob& job = it->second.job;
  if (!job.made() || job.plan().job != plan.job) return;
  // Nothing waits at the end of a job, but for a call that came after it.
  Feed({it->first, it->second.life}, home::FailInput{home::NoDurableJob(config_.self, plan.job)});
  rendezvous_.Forget(plan.job, home::NoJobOfNumber(plan.job));
  if (const HomeJob* const left = Find(plan.name())) places_.Change(-UnderWay(*left));
  timers_.Drop(plan.name());
  homes_.erase(plan.name());
}

void HomeJobs::OnPeerLost(uint32_t server, const std::string& why) {
  FeedAll(home::PeerLostInput{server, why});
}

void HomeJobs::FailCalls(const absl::Status& status) {
  rendezvous_.FailCalls(status);
  FeedAll(home::FailInput{status});
}

const HomeJob* HomeJobs::Find(const QualifiedName& name) const {
  const auto it = homes_.find(name);
  return it == homes_.end() ? nullptr : &it->second.job;
}

const HomeJob* HomeJobs::FindUnconfirmed(const std::string* tenant) const {
  for (const auto& [name, home] : homes_) {
    if (tenant != nullptr && name.tenant != *tenant) continue;
    if (home.job.unconfirmed()) return &home.job;
  }
  return nullptr;
}

std::vector<JobStatus> HomeJobs::Attaching() const {
  std::vector<JobStatus> jobs;
  for (const auto& [name, home] : homes_) {
    const std::optional<HomeJob::Attaching> world = home.job.attaching();
    if (!world.has_value()) continue;
    JobStatus job{
        .name = name.name, .tenant = name.tenant, .job = home.job.plan().job, .state = "attaching"};
    job.world = world->world;
    for (uint32_t s = 0; s < job.world; ++s) job.slots.push_back({.slot = s, .state = "attached"});
    for (const uint32_t s : world->missing) job.slots[s].state = "absent";
    jobs.push_back(std::move(job));
  }
  return jobs;
}

// --- Feeding ------------------------------------------------------------------------------------

const HomeJob* HomeJobs::At(const Life& to) const {
  const auto it = homes_.find(to.name);
  return it == homes_.end() || it->second.life != to.life ? nullptr : &it->second.job;
}

HomeJobs::Life HomeJobs::Add(HomeJob job) {
  const QualifiedName name = job.plan().name();
  const uint64_t life = next_life_++;
  places_.Change(UnderWay(job));
  homes_.emplace(name, Home{life, std::move(job)});
  return {name, life};
}

void HomeJobs::Feed(const Life& to, const home::Input& input) {
  const auto it = homes_.find(to.name);
  if (it == homes_.end() || it->second.life != to.life) return;  // The job is over.
  HomeJob& job = it->second.job;
  const int before = UnderWay(job);
  home::Effects effects;
  job.Step(clock_->Now(), input, &effects);
  places_.Change(UnderWay(job) - before);
  rendezvous_.Follow(job);
  if (job.stage() == HomeJob::Stage::kOver) {
    timers_.Drop(to.name);
    homes_.erase(it);
  }
  for (const home::Effect& effect : effects) {
    std::visit([&](const auto& one) { Do(to, one); }, effect);
  }
}

void HomeJobs::FeedAll(const home::Input& input) {
  std::vector<Life> lives;
  for (const auto& [name, home] : homes_) lives.push_back({name, home.life});
  for (const Life& life : lives) Feed(life, input);
}

HomeJobs::Feeder HomeJobs::Later(const Life& to) {
  return [this, keep = host_->Keep(), to](home::Input input) {
    host_->PostHere([this, to, input = std::move(input)] { Feed(to, input); });
  };
}

// --- Effects: answers ---------------------------------------------------------------------------

void HomeJobs::Do(const Life&, const home::RefuseAttach& effect) {
  Take(&attaches_, effect.ticket)(effect.status);
}

void HomeJobs::Do(const Life&, const home::DropCall& effect) { attaches_.erase(effect.ticket); }

// The engine knows what the slot's last process left; `done` runs on the job's strand.
void HomeJobs::Do(const Life&, const home::GiveSeat& effect) {
  const AttachDone done = Take(&attaches_, effect.ticket);
  const std::shared_ptr<RoundEngine> engine = host_->EngineOf(effect.plan.job);
  if (engine == nullptr) return done(home::NoDurableJob(config_.self, effect.plan.job));
  AttachResult result{.plan = effect.plan, .servers = ServersOf(config_, effect.plan)};
  result.resumed = effect.plan.epoch.epoch > 1;
  result.window_extents = engine->window_extents();
  engine->StateOfSeat(effect.slot, [result, done](const SeatState& state) {
    AttachResult own = result;
    own.state = state;
    done(std::move(own));
  });
}

void HomeJobs::Do(const Life&, const home::AnswerExtend& effect) {
  Take(&extends_, effect.ticket)(effect.plan);
}

// --- Effects: making, waking, dropping ----------------------------------------------------------

void HomeJobs::Do(const Life& to, const home::MakeAt& effect) {
  const auto& [server, plan] = effect;
  if (server == config_.self) {
    return Feed(to, home::MadeInput{server, host_->MakeHere(plan)});
  }
  peers_->CreateJob(server, plan, [this, keep = host_->Keep(), to, effect](absl::Status status) {
    host_->PostHere([=, this] { OnMade(to, effect.server, effect.plan, status); });
  });
}

void HomeJobs::OnMade(const Life& to, uint32_t server, const JobPlan& plan,
                      const absl::Status& status) {
  if (At(to) != nullptr) return Feed(to, home::MadeInput{server, status});
  // Given up meanwhile, because a peer was lost; unless the same processes make it again.
  const HomeJob* const again = Find(to.name);
  if (!plan.making || (again != nullptr && again->plan().job == plan.job)) return;
  DropAtPeer(server, plan.job);
  host_->ForgetHere(plan.job);
}

void HomeJobs::Do(const Life& to, const home::SaveRecord& effect) {
  Feed(to, home::SavedInput{host_->SaveHere(effect.plan)});
}

void HomeJobs::Do(const Life&, const home::ExpectSlots& effect) {
  if (const auto engine = host_->EngineOf(effect.job); engine != nullptr)
    engine->trainers().ExpectSlots();
}

void HomeJobs::Do(const Life&, const home::DropAt& effect) {
  DropAtPeer(effect.server, effect.job);
}

void HomeJobs::DropAtPeer(uint32_t server, uint64_t job) {
  peers_->DropJob(server, job, [server](const absl::Status& status) {
    if (status.ok()) return;
    BALLAST_LOG(WARN, LogField("server", server)) << "cannot drop a job there: " << status;
  });
}

void HomeJobs::Do(const Life&, const home::Forget& effect) { host_->ForgetHere(effect.job); }

void HomeJobs::Do(const Life&, const home::Release& effect) { host_->ReleaseHere(effect.job); }

void HomeJobs::Do(const Life&, const home::WakeRecord& effect) { host_->RestsNoMore(effect.name); }

// --- Effects: epochs and growth -----------------------------------------------------------------

void HomeJobs::Do(const Life& to, const home::SealAt& effect) {
  const auto sealed = [feed = Later(to), effect](const absl::StatusOr<SealAnswer>& answer) {
    feed(home::SealedInput{effect.change, effect.server, answer});
  };
  const SealCall call{.job = effect.job, .epoch = effect.epoch, .world = effect.world};
  if (effect.server == config_.self) return host_->SealHere(call, sealed);
  peers_->Seal(effect.server, call, sealed);
}

void HomeJobs::Do(const Life& to, const home::AdoptAt& effect) {
  const auto adopted = [feed = Later(to), server = effect.server,
                        epoch = effect.plan.epoch.epoch](const absl::Status& status) {
    feed(home::AdoptedInput{epoch, server, status});
  };
  if (effect.server == config_.self) return host_->AdoptHere(effect.plan, adopted);
  peers_->AdoptEpoch(effect.server, effect.plan, adopted);
}

void HomeJobs::Do(const Life& to, const home::OpenAt& effect) {
  peers_->CreateJob(effect.server, effect.plan,
                    [feed = Later(to), server = effect.server,
                     epoch = effect.plan.epoch.epoch](const absl::Status& status) {
                      feed(home::OpenedInput{epoch, server, status});
                    });
}

void HomeJobs::Do(const Life& to, const home::GrowAt& effect) {
  const auto grown = [feed = Later(to), server = effect.server,
                      attempt = effect.attempt](const absl::Status& status) {
    feed(home::GrownInput{attempt, server, status});
  };
  if (effect.server == config_.self) return host_->GrowHere(effect.plan, grown);
  peers_->ExtendJob(effect.server, effect.plan, grown);
}

void HomeJobs::Do(const Life&, const home::SlotGrows& effect) {
  const auto engine = host_->EngineOf(effect.job);
  if (engine != nullptr) engine->SlotGrows(effect.slot, effect.grows);
}

void HomeJobs::Do(const Life& to, const home::LookAtSeat& effect) {
  const std::shared_ptr<RoundEngine> engine = host_->EngineOf(effect.job);
  if (engine == nullptr) {
    return Feed(to, home::FailInput{home::NoDurableJob(config_.self, effect.job)});
  }
  engine->trainers().SlotOpen(effect.slot, [feed = Later(to), effect](const SeatUse& use) {
    feed(home::SeatSeenInput{effect.slot, effect.ticket, use.open, use.anybody});
  });
}

void HomeJobs::Do(const Life&, const home::FailJob& effect) {
  const auto engine = host_->EngineOf(effect.job);
  if (engine == nullptr) return;
  effect.unless_opened ? engine->FailUnopened(effect.status) : engine->Fail(effect.status);
}

// --- Effects: time and the log ------------------------------------------------------------------

void HomeJobs::Do(const Life& to, const home::Arm& effect) {
  if (At(to) != nullptr) timers_.Arm(to, effect);
}

void HomeJobs::Do(const Life& to, const home::Note& effect) {
  if (effect.warning) {
    BALLAST_LOG(WARN, LogField("run", to.name.Text())) << effect.text;
  } else if (effect.slot >= 0) {
    BALLAST_LOG(INFO, LogField("run", to.name.Text()), LogField("slot", effect.slot))
        << effect.text;
  } else {
    BALLAST_LOG(INFO, LogField("run", to.name.Text())) << effect.text;
  }
}

}  // namespace ballast::server
