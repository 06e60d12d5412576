// Home: seats that change hands. A process that was started again asks for its seat; when the
// old holder's stream is gone, the home leads the job into its next epoch. See epoch_change.h.
// Thread safety: on the strand.
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/home.h"

namespace ballast::server {
namespace {

// How often a seat that still looks held is looked at again.
constexpr std::chrono::milliseconds kSeatPoll{100};
// How soon a server that did not seal or adopt an epoch is asked again.
constexpr std::chrono::milliseconds kAskAgain{500};

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Home::TakeSeat(Pending* pending, const AttachCall& call, const AttachDone& done) {
  const JobSpec& spec = pending->plan.spec;
  const std::string difference = FirstDifference(spec, call.spec);
  if (!difference.empty() || call.slot >= call.spec.world) {
    done(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kSpecMismatch,
                       absl::StrCat("slot ", call.slot, " cannot go on with job \"", spec.name,
                                    "\": ", difference.empty() ? "no such seat" : difference),
                       {.job = spec.name, .slot = static_cast<int>(call.slot)}));
    return;
  }
  Waiting& waiting = pending->waiting[call.slot];
  if (waiting.done) {
    waiting.done(absl::CancelledError("a later call for the same seat took its place"));
  }
  const auto now = clock_->Now();
  const auto wait = call.wait.count() > 0 ? call.wait : config().attach_timeout;
  waiting = {call.call, call.incarnation, done, call.spec.world, call.min_world, now + wait};
  pending->newcomers.erase(call.slot);
  if (pending->created) {
    AwaitSeat(spec.name, call.slot, call.incarnation, now + config().takeover_wait);
  } else {  // It is being made or woken up, so nobody has a stream; the change follows.
    pending->newcomers[call.slot] = call.incarnation;
  }
}

// A job that ended lies on disk at every server; whoever goes on with it makes them open it again.
bool Home::WakeUp(const AttachCall& call, const AttachDone& done) {
  const std::string& name = call.spec.name;
  const auto ended = pending_.find(name);
  if (ended != pending_.end() && ended->second.created && call.resume != Resume::kNever) {
    const LocalJobs::Job* const local = parts_.jobs->Get(ended->second.plan.job);
    const bool durable = ended->second.plan.spec.durability != Durability::kNone;
    if (durable && local != nullptr && local->ended) parts_.jobs->Drop(local->plan.job);
  }
  const auto it = resting_.find(name);
  if (it == resting_.end() || pending_.count(name) != 0) return false;
  if (call.resume == Resume::kNever) {
    done(NameTaken(call, it->second, /*ended=*/true));
    return true;
  }
  if (const absl::Status held = snapshots_->HeldAtRest(it->second); !held.ok()) {
    done(held);
    return true;
  }
  JobPlan plan = it->second;
  plan.resting = false;
  plan.resting_round = 0;
  Pending& pending = pending_.emplace(name, Pending(plan)).first->second;
  pending.generation = next_generation_++;
  pending.created = false;
  pending.creating = true;
  pending.rested = true;
  TakeSeat(&pending, call, done);
  auto gather = std::make_shared<Gather>(
      plan.servers.size(),
      [self = shared_from_this(), name, job = plan.job](const absl::Status& status) {
        self->Post([self = self.get(), name, job, status] { self->OnAwake(name, job, status); });
      });
  CreateAtServers(plan, gather);
  return true;
}

void Home::OnAwake(const std::string& name, uint64_t job, const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.job != job) return;
  Pending& pending = it->second;
  pending.creating = false;
  if (!status.ok()) {
    FailPending(&pending, status);
    pending_.erase(it);
    parts_.jobs->Drop(job);
    return;
  }
  pending.created = true;
  resting_.erase(name);
  // A server may have missed the last epoch before the end; newcomers have their turn after it.
  pending.change.emplace(pending.plan);
  AdoptEverywhere(name, JobPlan(pending.plan));
  AwaitNewcomers(pending);
}

// Begins the change once nobody holds the seat's stream open at this server.
void Home::AwaitSeat(const std::string& name, uint32_t slot, uint64_t incarnation,
                     std::chrono::nanoseconds give_up) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  const std::shared_ptr<RoundEngine> engine = Find(it->second.plan.job);
  if (engine == nullptr) {
    EndChange(&it->second, parts_.self->NoDurableJob(it->second.plan.job));
    return;
  }
  engine->SlotOpen(
      slot, [self = shared_from_this(), name, slot, incarnation, give_up](const SeatUse& use) {
        self->Post([self = self.get(), name, slot, incarnation, give_up, use] {
          self->OnSeatSeen(name, slot, incarnation, give_up, use);
        });
      });
}

void Home::OnSeatSeen(const std::string& name, uint32_t slot, uint64_t incarnation,
                      std::chrono::nanoseconds give_up, const SeatUse& use) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  Pending& pending = it->second;
  const auto waiting = pending.waiting.find(slot);
  // Answered meanwhile, or another process asks for the seat.
  if (waiting == pending.waiting.end() || waiting->second.incarnation != incarnation) return;
  if (use.anybody) SomebodyIsThere(&pending);
  if (!use.open) {
    pending.newcomers[slot] = incarnation;
    if (!OnNewcomer(&pending, slot)) return;
  }
  if (!use.open || clock_->Now() < give_up) {
    parts_.strand->PostAfter(kSeatPoll,
                             [self = shared_from_this(), name, slot, incarnation, give_up] {
                               self->AwaitSeat(name, slot, incarnation, give_up);
                             });
    return;
  }
  const AttachDone done = std::move(waiting->second.done);
  pending.waiting.erase(waiting);
  done(ReasonedError(
      absl::StatusCode::kAlreadyExists, Reason::kSlotTaken,
      absl::StrCat("slot ", slot, " of job \"", name, "\" is held by a process that is alive; ",
                   "end it first, or check the ranks"),
      {.job = name, .slot = static_cast<int>(slot)}));
}

// A member has left, or its lease ran out. In a fixed world its seat is kept for its next process.
void Home::OnSeatFree(const std::string& name, uint32_t slot, uint64_t incarnation, bool left) {
  if (!parts_.self->IsHome()) AskSoon();
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  Pending& pending = it->second;
  if (!pending.plan.spec.variable_world || !pending.plan.epoch.Holds(slot, incarnation)) return;
  pending.gone[slot] = incarnation;
  if (!WantsChange(pending)) {
    pending.gone.erase(slot);
    return;
  }
  BALLAST_LOG(INFO, LogField("run", name), LogField("slot", slot))
      << (left ? "trainer has left; the world shrinks" : "lease ran out; the world shrinks");
  if (pending.created) StartChange(&pending);  // Else when it is.
}

bool Home::WantsChange(const Pending& pending) const {
  const bool comes = !pending.newcomers.empty() && !pending.gathers;
  return pending.sealed || comes || MayShrink(pending.plan.epoch, pending.gone);
}

// The home seals first: should it end now, it knows afterwards that the epoch cannot go on.
void Home::StartChange(Pending* pending) {
  // When it is over, those who came late have their turn.
  if (pending->change.has_value() || pending->growing) return;
  const JobPlan plan = pending->plan;
  pending->change.emplace(plan);
  parts_.jobs->Seal(plan.job, plan.epoch.epoch,
                    [self = shared_from_this(), plan](const absl::StatusOr<SealAnswer>& answer) {
                      self->Post([self = self.get(), plan, answer] {
                        self->OnSealed(plan.spec.name, plan.epoch.epoch, self->parts_.self->id(),
                                       answer);
                        if (answer.ok()) self->SealPeers(plan);
                      });
                    });
}

void Home::SealPeers(const JobPlan& plan) {
  for (const uint32_t server : plan.servers) {
    if (server == parts_.self->id()) continue;
    parts_.peers->Seal(server, plan.job, plan.epoch.epoch,
                       [self = shared_from_this(), name = plan.spec.name, server,
                        epoch = plan.epoch.epoch](const absl::StatusOr<SealAnswer>& answer) {
                         self->Post([self = self.get(), name, epoch, server, answer] {
                           self->OnSealed(name, epoch, server, answer);
                         });
                       });
  }
}

// Only the home writes epochs: a server in a later one knows more than the home's disk.
absl::Status Home::SealError(const JobPlan& plan, uint32_t server,
                             const absl::Status& status) const {
  if (ReasonOf(status) != Reason::kStaleEpoch) return status;
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("job \"", plan.spec.name, "\": server ", server,
                   " is in a later epoch than the ", plan.epoch.epoch, " that its home, server ",
                   parts_.self->id(), ", has on record (", status.message(),
                   "). The home's data directory is an older one: put back the newer, or delete "
                   "the job (ballastctl jobs delete ",
                   plan.spec.name, ")"),
      {.job = plan.spec.name, .server = static_cast<int>(parts_.self->id())});
}

void Home::OnSealed(const std::string& name, uint32_t epoch, uint32_t server,
                    const absl::StatusOr<SealAnswer>& answer) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || !it->second.change.has_value()) return;
  Pending& pending = it->second;
  // One that comes late, of a change that was given up: the record must not be written twice.
  if (pending.plan.epoch.epoch != epoch || pending.change->AllSealed()) return;
  if (!answer.ok()) {
    OnSealFailed(&pending, server, SealError(pending.plan, server, answer.status()));
    return;
  }
  pending.change->OnSealed(server, *answer);
  if (pending.change->AllSealed()) WriteRecord(&pending);
}

// No round of a sealed epoch can be prepared any more, so the next one must come, whoever hangs up.
void Home::OnSealFailed(Pending* pending, uint32_t server, const absl::Status& status) {
  const std::shared_ptr<RoundEngine> engine = Find(pending->plan.job);
  if (ReasonOf(status) == Reason::kJobFinished) AskAgain(pending);
  EndChange(pending, status);
  if (server == parts_.self->id() || engine == nullptr) return;  // The job is over.
  pending->sealed = true;
  if (ReasonOf(status) == Reason::kJobFinished) {  // Every trainer has told that server its end.
    engine->Fail(status);
    return;
  }
  parts_.strand->PostAfter(kAskAgain, [self = shared_from_this(), name = pending->plan.spec.name,
                                       epoch = pending->plan.epoch.epoch] {
    const auto it = self->pending_.find(name);
    if (it == self->pending_.end() || it->second.plan.epoch.epoch != epoch) return;
    self->StartChange(&it->second);
  });
}

void Home::WriteRecord(Pending* pending) {
  const std::string name = pending->plan.spec.name;
  pending->sealed = false;
  SeatChanges changes;
  if (!pending->gathers) {
    TurnAway(pending, pending->change->WorldMax());
    changes.newcomers = pending->newcomers;
    if (!changes.newcomers.empty()) changes.min_world = GatheringOf(*pending).min_world;
  }
  for (const auto& [slot, incarnation] : std::exchange(pending->gone, {})) {
    if (pending->plan.epoch.Holds(slot, incarnation)) changes.gone.insert(slot);
  }
  const absl::StatusOr<JobPlan> next = pending->change->NextPlan(changes);
  if (!next.ok()) {
    EndChange(pending, next.status());
    return;
  }
  // The home first: from then on the record is final.
  parts_.jobs->Adopt(*next,
                     [self = shared_from_this(), name, plan = *next](const absl::Status& status) {
                       self->Post([self = self.get(), name, plan, status] {
                         const auto found = self->pending_.find(name);
                         if (status.ok()) {
                           self->AdoptEverywhere(name, plan);
                         } else if (found != self->pending_.end()) {
                           self->EndChange(&found->second, status);
                         }
                       });
                     });
}

void Home::TurnAway(Pending* pending, uint32_t world_max) {
  const EpochRecord& epoch = pending->plan.epoch;
  uint32_t world = epoch.world();
  std::erase_if(pending->newcomers, [&](const auto& newcomer) {
    const uint32_t slot = newcomer.first;
    if (epoch.Find(slot) != nullptr || ++world <= world_max) return false;
    const auto waiting = pending->waiting.find(slot);
    if (waiting == pending->waiting.end()) return true;
    waiting->second.done(
        ReasonedError(absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
                      absl::StrCat("job \"", pending->plan.spec.name, "\" has room for ", world_max,
                                   " trainers; raise storage.memory_budget or add servers"),
                      {.job = pending->plan.spec.name, .slot = static_cast<int>(slot)}));
    pending->waiting.erase(waiting);
    return true;
  });
}

void Home::AdoptEverywhere(const std::string& name, const JobPlan& plan) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.epoch.epoch > plan.epoch.epoch) return;
  it->second.plan = plan;
  if (!parts_.jobs->Runs(plan.job)) return;  // What rests is told when it wakes up.
  auto gather = std::make_shared<Gather>(
      plan.servers.size() - 1, [self = shared_from_this(), name, plan](const absl::Status& status) {
        self->Post(
            [self = self.get(), name, plan, status] { self->OnAdopted(name, plan, status); });
      });
  for (const uint32_t server : plan.servers) {
    if (server == parts_.self->id()) continue;
    parts_.peers->AdoptEpoch(
        server, plan,
        [self = shared_from_this(), server, plan, gather](const absl::Status& status) {
          if (!absl::IsNotFound(status)) return gather->Add(status);
          self->Post([self = self.get(), server, plan, gather] {
            self->OpenAtPeer(server, plan, gather);
          });
        });
  }
}

// A peer without the job: this home went down while it ended, and there it rests already, perhaps
// in the epoch before. A peer that lost its files refuses.
void Home::OpenAtPeer(uint32_t server, const JobPlan& plan, const std::shared_ptr<Gather>& gather) {
  parts_.peers->CreateJob(server, plan, [=, self = shared_from_this()](const absl::Status& status) {
    if (!status.ok()) return gather->Add(status);
    self->parts_.peers->AdoptEpoch(server, plan,
                                   [gather](const absl::Status& adopted) { gather->Add(adopted); });
  });
}

void Home::OnAdopted(const std::string& name, const JobPlan& plan, const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.epoch.epoch != plan.epoch.epoch) return;
  Pending& pending = it->second;
  if (status.ok()) {
    pending.unconfirmed = false;
    EndChange(&pending, status);
    return;
  }
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  if (ReasonOf(status) == Reason::kJobFinished && engine != nullptr) {
    engine->Fail(status);  // As with a seal: every trainer has told that server its end.
    return;
  }
  // The record is final, so the rest must follow; a server may be away for longer.
  BALLAST_LOG(WARN, LogField("run", name))
      << "epoch " << plan.epoch.epoch << " is not adopted everywhere yet: " << status;
  // Nobody should wait for a server that needs help.
  if (!absl::IsUnavailable(status)) {
    pending.unconfirmed = false;
    FailPending(&pending, status);
  }
  parts_.strand->PostAfter(
      kAskAgain, [self = shared_from_this(), name, plan] { self->AdoptEverywhere(name, plan); });
}

// Answers everybody whose seat is settled now. Newcomers that came late start the next change;
// those whose seat is still held go on waiting for it.
void Home::EndChange(Pending* pending, const absl::Status& status) {
  pending->change.reset();
  const EpochRecord& epoch = pending->plan.epoch;
  for (auto& [slot, call] : std::exchange(pending->survivors, {})) {
    if (!status.ok()) {
      call.done(status);
    } else if (epoch.Holds(slot, call.incarnation)) {
      SomebodyIsThere(pending);
      AnswerSeat(*pending, slot, call.done);
    } else {
      call.done(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                              absl::StrCat("slot ", slot, " of job \"", pending->plan.spec.name,
                                           "\" is not this process' any more"),
                              {.job = pending->plan.spec.name, .slot = static_cast<int>(slot)}));
    }
  }
  for (auto& [slot, call] : std::exchange(pending->waiting, {})) {
    if (!status.ok()) {
      call.done(status);
    } else if (epoch.Holds(slot, call.incarnation)) {
      SomebodyIsThere(pending);
      AnswerSeat(*pending, slot, call.done);
    } else {
      pending->waiting[slot] = std::move(call);
    }
  }
  std::erase_if(pending->newcomers, [&](const auto& newcomer) {
    return !status.ok() || epoch.Holds(newcomer.first, newcomer.second);
  });
  if (pending->newcomers.empty()) pending->gathers_until.reset();
  if (status.ok() && WantsChange(*pending)) StartChange(pending);
}

// Peers may have missed the newest record when this server, their home, went down; and this server
// the end of a job.
void Home::StartRecovered() {
  AskUntilAnswered();
  for (auto& [name, pending] : pending_) {
    if (pending.creating) MakeEverywhere(JobPlan(pending.plan));
    if (!pending.created || pending.change.has_value()) continue;
    pending.change.emplace(pending.plan);  // The next one comes after it.
    // Its last life may have begun a change and not ended it.
    pending.sealed = std::exchange(pending.plan.sealed_epoch, 0) == pending.plan.epoch.epoch;
    AdoptEverywhere(name, JobPlan(pending.plan));
    pending.growing = pending.plan.layout_version > 1;
    GrowPeers(name);
  }
}

}  // namespace ballast::server
