// HomeJobs: how the effects of its jobs are carried out. See home_jobs.h.
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/home/home_errors.h"
#include "server/home/home_jobs.h"

namespace ballast::server {
namespace {

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

// --- Effects: answers ---------------------------------------------------------------------------

void HomeJobs::Do(const Life&, const home::RefuseAttach& effect) {
  Take(&attaches_, effect.ticket)(effect.status);
}

void HomeJobs::Do(const Life&, const home::DropCall& effect) { attaches_.erase(effect.ticket); }

// The engine knows what the slot's last process left; `done` runs on the job's strand.
void HomeJobs::Do(const Life&, const home::GiveSeat& effect) {
  const AttachDone done = Take(&attaches_, effect.ticket);
  const std::shared_ptr<RoundEngine> engine = parts_.shares->Find(effect.plan.job);
  if (engine == nullptr) return done(parts_.self->NoDurableJob(effect.plan.job));
  AttachResult result{.plan = effect.plan, .servers = ServersOf(config_, effect.plan)};
  result.resumed = effect.plan.epoch.epoch > 1;
  result.window_extents = engine->window_extents();
  engine->trainers().StateOfSeat(
      effect.slot, [result = std::move(result), done](const SeatState& state) mutable {
        result.state = state;
        done(std::move(result));  // The callback runs once, so nothing is copied.
      });
}

void HomeJobs::Do(const Life&, const home::AnswerExtend& effect) {
  Take(&extends_, effect.ticket)(effect.plan);
}

// --- Effects: making, waking, dropping ----------------------------------------------------------

void HomeJobs::Do(const Life& to, const home::MakeAt& effect) {
  const auto& [server, plan] = effect;
  if (server == config_.self) {
    return Feed(to, home::MadeInput{server, parts_.self->WithPlace(parts_.shares->Make(plan))});
  }
  const auto made = [this, to, server = server, fresh = plan.making ? plan.job : 0](
                        const absl::Status& status) { OnMade(to, server, fresh, status); };
  parts_.peers->CreateJob(server, plan, parts_.strand->Bind(made));
}

void HomeJobs::OnMade(const Life& to, uint32_t server, uint64_t fresh, const absl::Status& status) {
  if (homes_.At(to) != nullptr) return Feed(to, home::MadeInput{server, status});
  // Given up meanwhile, because a peer was lost.
  if (fresh != 0) Do(to, home::DropAt{server, fresh});
}

void HomeJobs::Do(const Life& to, const home::SaveRecord& effect) {
  Feed(to, home::SavedInput{parts_.shares->Save(effect.plan)});
}

void HomeJobs::Do(const Life&, const home::ExpectSlots& effect) {
  const auto engine = parts_.shares->Find(effect.job);
  if (engine != nullptr) engine->trainers().ExpectSlots();
}

void HomeJobs::Do(const Life&, const home::DropAt& effect) {
  parts_.peers->DropJob(effect.server, effect.job, [effect](const absl::Status& status) {
    if (status.ok()) return;
    BALLAST_LOG(WARN, LogField("server", effect.server)) << "cannot drop a job there: " << status;
  });
}

void HomeJobs::Do(const Life&, const home::Forget& effect) {
  parts_.shares->Forget(effect.job).IgnoreError();  // Logged.
}

// The engine may be at its files, which may be opened again once it is dropped: so it ends first,
// and trainers that ask meanwhile wait.
void HomeJobs::Do(const Life& to, const home::Release& effect) {
  const std::shared_ptr<RoundEngine> engine = parts_.shares->Find(effect.job);
  if (engine == nullptr) return parts_.shares->Drop(effect.job);
  released_.try_emplace(to.name);
  engine->Fail(home::NotWoken(to.name.name));
  engine->Status(parts_.strand->Bind([this, name = to.name, job = effect.job](const JobStatus&) {
    parts_.shares->Drop(job);
    const auto waiting = released_.extract(name);
    for (const auto& [call, done] : waiting.mapped()) Seat(call, done);
  }));
}

void HomeJobs::Do(const Life&, const home::WakeRecord& effect) {
  parts_.resting->Remove(effect.name);
}

// --- Effects: epochs and growth -----------------------------------------------------------------

void HomeJobs::Do(const Life& to, const home::SealAt& effect) {
  const auto sealed = [feed = Later(to), effect](const absl::StatusOr<SealAnswer>& answer) {
    feed(home::SealedInput{effect.change, effect.server, answer});
  };
  if (effect.server == config_.self) return parts_.shares->Seal(effect.call, sealed);
  parts_.peers->Seal(effect.server, effect.call, sealed);
}

void HomeJobs::Do(const Life& to, const home::AdoptAt& effect) {
  const auto adopted = [feed = Later(to), server = effect.server,
                        epoch = effect.plan.epoch.epoch](const absl::Status& status) {
    feed(home::AdoptedInput{epoch, server, status});
  };
  if (effect.server == config_.self) return parts_.shares->AdoptEpoch(effect.plan, adopted);
  parts_.peers->AdoptEpoch(effect.server, effect.plan, adopted);
}

void HomeJobs::Do(const Life& to, const home::OpenAt& effect) {
  parts_.peers->CreateJob(effect.server, effect.plan,
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
  if (effect.server == config_.self) return parts_.shares->ExtendJob(effect.plan, grown);
  parts_.peers->ExtendJob(effect.server, effect.plan, grown);
}

void HomeJobs::Do(const Life&, const home::SlotGrows& effect) {
  const auto engine = parts_.shares->Find(effect.job);
  if (engine != nullptr) engine->changes().SlotGrows(effect.slot, effect.grows);
}

void HomeJobs::Do(const Life& to, const home::LookAtSeat& effect) {
  const std::shared_ptr<RoundEngine> engine = parts_.shares->Find(effect.job);
  if (engine == nullptr) {
    return Feed(to, home::FailInput{parts_.self->NoDurableJob(effect.job)});
  }
  engine->trainers().SlotOpen(effect.slot, [feed = Later(to), effect](const SeatUse& use) {
    feed(home::SeatSeenInput{effect.slot, effect.ticket, use.open, use.anybody});
  });
}

void HomeJobs::Do(const Life&, const home::FailJob& effect) {
  const auto engine = parts_.shares->Find(effect.job);
  if (engine == nullptr) return;
  effect.unless_opened ? engine->FailUnopened(effect.status) : engine->Fail(effect.status);
}

// --- Effects: time and the log ------------------------------------------------------------------

void HomeJobs::Do(const Life& to, const home::Arm& effect) {
  if (homes_.At(to) != nullptr) timers_.Arm(to, effect);
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
