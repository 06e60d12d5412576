// Directory: seats that change hands. A process that was started again asks for its seat; when the
// old holder's stream is gone, the home leads the job into its next epoch. See epoch_change.h.
// Thread safety: on the strand.
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"

namespace ballast::server {
namespace {

// How often a seat that still looks held is looked at again.
constexpr std::chrono::milliseconds kSeatPoll{100};
// How soon a server that did not adopt an epoch is asked again.
constexpr std::chrono::milliseconds kAdoptAgain{500};

}  // namespace

// --- At the home --------------------------------------------------------------------------------

void Directory::TakeSeat(Pending* pending, const AttachCall& call, const AttachDone& done) {
  const JobSpec& spec = pending->plan.spec;
  const std::string difference = FirstDifference(spec, call.spec);
  if (!difference.empty() || call.slot >= spec.world) {
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
  waiting = {call.call, call.incarnation, done};
  pending->newcomers.erase(call.slot);
  if (pending->created) {
    AwaitSeat(spec.name, call.slot, call.incarnation, deps_.clock->Now() + config_.takeover_wait);
  } else {  // It is being made or woken up, so nobody has a stream; the change follows.
    pending->newcomers[call.slot] = call.incarnation;
  }
}

// A job that ended lies on disk at every server; whoever goes on with it makes them open it again.
bool Directory::WakeUp(const AttachCall& call, const AttachDone& done) {
  const std::string& name = call.spec.name;
  const auto ended = pending_.find(name);
  if (ended != pending_.end() && ended->second.created && call.resume != Resume::kNever) {
    const auto local = local_.find(ended->second.plan.job);
    const bool durable = ended->second.plan.spec.durability != Durability::kNone;
    if (durable && local != local_.end() && local->second.ended) Drop(local->first);
  }
  const auto it = resting_.find(name);
  if (it == resting_.end() || pending_.count(name) != 0) return false;
  if (call.resume == Resume::kNever) {
    done(ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                       absl::StrCat("job \"", name, "\" was run before and is kept on disk; use ",
                                    "resume=\"auto\" to go on with it, or a fresh name"),
                       {.job = name, .slot = static_cast<int>(call.slot)}));
    return true;
  }
  const JobPlan plan = it->second;
  Pending& pending = pending_.emplace(name, Pending(plan)).first->second;
  pending.generation = next_generation_++;
  pending.created = false;
  pending.creating = true;
  TakeSeat(&pending, call, done);
  auto gather = std::make_shared<Gather>(
      plan.servers.size(),
      [self = shared_from_this(), name, job = plan.job](const absl::Status& status) {
        self->Post([self = self.get(), name, job, status] { self->OnAwake(name, job, status); });
      });
  for (const uint32_t server : plan.servers) {
    const auto add = [gather](const absl::Status& status) { gather->Add(status); };
    if (server == config_.self) {
      add(CreateLocal(plan));
    } else {
      peers_->CreateJob(server, plan, add);
    }
  }
  return true;
}

void Directory::OnAwake(const std::string& name, uint64_t job, const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.job != job) return;
  Pending& pending = it->second;
  pending.creating = false;
  if (!status.ok()) {
    FailPending(&pending, status);
    pending_.erase(it);
    Drop(job);
    return;
  }
  pending.created = true;
  resting_.erase(name);
  if (pending.newcomers.empty()) return;  // Its only caller did not fit the job.
  StartChange(&pending);
}

// Begins the change once nobody holds the seat's stream open at this server.
void Directory::AwaitSeat(const std::string& name, uint32_t slot, uint64_t incarnation,
                          std::chrono::nanoseconds give_up) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  const std::shared_ptr<RoundEngine> engine = Find(it->second.plan.job);
  if (engine == nullptr) {
    EndChange(&it->second, NoDurableJob(it->second.plan.job));
    return;
  }
  engine->SlotOpen(slot, [self = shared_from_this(), name, slot, incarnation, give_up](bool open) {
    self->Post([self = self.get(), name, slot, incarnation, give_up, open] {
      self->OnSeatSeen(name, slot, incarnation, give_up, open);
    });
  });
}

void Directory::OnSeatSeen(const std::string& name, uint32_t slot, uint64_t incarnation,
                           std::chrono::nanoseconds give_up, bool open) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  Pending& pending = it->second;
  const auto waiting = pending.waiting.find(slot);
  // Answered meanwhile, or another process asks for the seat.
  if (waiting == pending.waiting.end() || waiting->second.incarnation != incarnation) return;
  if (!open) {
    pending.newcomers[slot] = incarnation;
    StartChange(&pending);
    return;
  }
  if (deps_.clock->Now() < give_up) {
    strand_.PostAfter(kSeatPoll, [self = shared_from_this(), name, slot, incarnation, give_up] {
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

void Directory::StartChange(Pending* pending) {
  // When it is over, those who came late have their turn.
  if (pending->change.has_value() || pending->growing) return;
  const JobPlan& plan = pending->plan;
  pending->change.emplace(plan);
  for (const uint32_t server : plan.servers) {
    const auto answered = [self = shared_from_this(), name = plan.spec.name, server,
                           epoch = plan.epoch.epoch](const absl::StatusOr<SealAnswer>& answer) {
      self->Post([self = self.get(), name, epoch, server, answer] {
        self->OnSealed(name, epoch, server, answer);
      });
    };
    if (server == config_.self) {
      SealLocal(plan.job, plan.epoch.epoch, answered);
    } else {
      peers_->Seal(server, plan.job, plan.epoch.epoch, answered);
    }
  }
}

void Directory::OnSealed(const std::string& name, uint32_t epoch, uint32_t server,
                         const absl::StatusOr<SealAnswer>& answer) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || !it->second.change.has_value()) return;
  Pending& pending = it->second;
  // One that comes late, of a change that was given up: the record must not be written twice.
  if (pending.plan.epoch.epoch != epoch || pending.change->AllSealed()) return;
  if (!answer.ok()) {
    EndChange(&pending, answer.status());
    return;
  }
  pending.change->OnSealed(server, *answer);
  if (!pending.change->AllSealed()) return;
  const absl::StatusOr<JobPlan> next = pending.change->NextPlan(pending.newcomers);
  if (!next.ok()) {
    EndChange(&pending, next.status());
    return;
  }
  // The home first: from then on the record is final.
  AdoptLocal(*next, [self = shared_from_this(), name, plan = *next](const absl::Status& status) {
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

void Directory::AdoptEverywhere(const std::string& name, const JobPlan& plan) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.epoch.epoch > plan.epoch.epoch) return;
  it->second.plan = plan;
  auto gather = std::make_shared<Gather>(
      plan.servers.size() - 1, [self = shared_from_this(), name, plan](const absl::Status& status) {
        self->Post(
            [self = self.get(), name, plan, status] { self->OnAdopted(name, plan, status); });
      });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) continue;
    peers_->AdoptEpoch(
        server, plan,
        [self = shared_from_this(), server, plan, gather](const absl::Status& status) {
          if (!absl::IsNotFound(status)) return gather->Add(status);
          self->Post([self = self.get(), server, plan, gather] {
            self->OpenAtPeer(server, plan, gather);
          });
        });
  }
}

// A peer without the job: this home went down while it was made, and the peer never heard of it; or
// while it ended, and there it rests already. A peer that lost its files refuses.
void Directory::OpenAtPeer(uint32_t server, const JobPlan& plan,
                           const std::shared_ptr<Gather>& gather) {
  peers_->CreateJob(server, plan, [gather](const absl::Status& status) { gather->Add(status); });
}

void Directory::OnAdopted(const std::string& name, const JobPlan& plan,
                          const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.plan.epoch.epoch != plan.epoch.epoch) return;
  Pending& pending = it->second;
  if (status.ok()) {
    EndChange(&pending, status);
    return;
  }
  // The record is final, so the rest must follow; a server may be away for longer.
  BALLAST_LOG(WARN, LogField("run", name))
      << "epoch " << plan.epoch.epoch << " is not adopted everywhere yet: " << status;
  // Nobody should wait for a server that needs help.
  if (!absl::IsUnavailable(status)) FailPending(&pending, status);
  strand_.PostAfter(kAdoptAgain,
                    [self = shared_from_this(), name, plan] { self->AdoptEverywhere(name, plan); });
}

// Answers everybody whose seat is settled now. Newcomers that came late start the next change;
// those whose seat is still held go on waiting for it.
void Directory::EndChange(Pending* pending, const absl::Status& status) {
  pending->change.reset();
  const auto& members = pending->plan.epoch.members;
  for (auto& [slot, call] : std::exchange(pending->survivors, {})) {
    if (!status.ok()) {
      call.done(status);
    } else if (members[slot].incarnation == call.incarnation) {
      AnswerSeat(*pending, slot, call.done);
    } else {
      call.done(ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kWrongIncarnation,
                              absl::StrCat("slot ", slot, " of job \"", pending->plan.spec.name,
                                           "\" is held by another process now"),
                              {.job = pending->plan.spec.name, .slot = static_cast<int>(slot)}));
    }
  }
  bool again = false;
  for (auto& [slot, call] : std::exchange(pending->waiting, {})) {
    if (!status.ok()) {
      call.done(status);
    } else if (members[slot].incarnation == call.incarnation) {
      AnswerSeat(*pending, slot, call.done);
    } else {
      pending->waiting[slot] = std::move(call);
      again = again || pending->newcomers.count(slot) != 0;
    }
  }
  std::erase_if(pending->newcomers, [&](const auto& newcomer) {
    return !status.ok() || members[newcomer.first].incarnation == newcomer.second;
  });
  if (again) StartChange(pending);
}

// --- At every server ----------------------------------------------------------------------------

void Directory::SealLocal(uint64_t job, uint32_t epoch,
                          const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  const std::shared_ptr<RoundEngine> engine = Find(job);
  if (engine == nullptr || store_ == nullptr || local_.count(job) == 0) {
    done(NoDurableJob(job));
    return;
  }
  // The promise must outlive this process before anybody builds on it. On the engine's strand, as
  // AdoptLocal's: a seal that is repeated late must not undo the next epoch.
  const auto save = [store = store_.get()](const JobPlan& sealed) { return store->Save(sealed); };
  engine->Seal(
      epoch, save,
      [self = shared_from_this(), job, epoch, done](const absl::StatusOr<SealAnswer>& answer) {
        self->Post([self = self.get(), job, epoch, done, answer] {
          const auto local = self->local_.find(job);
          if (answer.ok() && local != self->local_.end() &&
              local->second.plan.epoch.epoch == epoch) {
            local->second.plan.sealed_epoch = epoch;
          }
          done(answer);
        });
      });
}

absl::Status Directory::NoDurableJob(uint64_t job) const {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("server ", config_.self, " has no durable job ", job),
                       {.server = static_cast<int>(config_.self)});
}

void Directory::AdoptLocal(const JobPlan& plan, const std::function<void(absl::Status)>& done) {
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  if (engine == nullptr || store_ == nullptr || local_.count(plan.job) == 0) {
    done(NoDurableJob(plan.job));
    return;
  }
  const auto save = [store = store_.get(), plan] { return store->Save(plan); };
  engine->Adopt(plan, save, [self = shared_from_this(), plan, done](const absl::Status& status) {
    self->Post([self = self.get(), plan, done, status] {
      const auto local = self->local_.find(plan.job);
      if (status.ok() && local != self->local_.end() &&
          local->second.plan.epoch.epoch < plan.epoch.epoch) {
        local->second.plan = plan;
      }
      done(status);
    });
  });
}

// Peers may have missed the newest record when this server, their home, went down.
void Directory::StartRecovered() {
  for (const auto& engine : Engines()) engine->Start();
  Post([this] {
    for (auto& [name, pending] : pending_) {
      if (!pending.created || pending.change.has_value()) continue;
      pending.change.emplace(pending.plan);  // The next one comes after it.
      AdoptEverywhere(name, JobPlan(pending.plan));
      pending.growing = pending.plan.layout_version > 1;
      GrowPeers(name);
    }
  });
}

}  // namespace ballast::server
