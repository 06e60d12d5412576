// Directory: seats that change hands. A process that was started again asks for its seat; when the
// old holder's stream is gone, the home leads the job into its next epoch. See epoch_change.h.
// Thread safety: on the strand.
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"

namespace ballast::server {
namespace {

// How often a seat that still looks held is looked at again.
constexpr std::chrono::milliseconds kSeatPoll{100};

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
  pending->newcomers[call.slot] = call.incarnation;
  if (!pending->created) return;  // It is being woken up; the change follows.
  AwaitSeat(spec.name, call.slot, deps_.clock->Now() + config_.takeover_wait);
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
void Directory::AwaitSeat(const std::string& name, uint32_t slot,
                          std::chrono::nanoseconds give_up) {
  const auto it = pending_.find(name);
  if (it == pending_.end() || it->second.newcomers.count(slot) == 0) return;
  const std::shared_ptr<RoundEngine> engine = Find(it->second.plan.job);
  if (engine == nullptr) {
    EndChange(&it->second, CheckHome());
    return;
  }
  engine->SlotOpen(slot, [self = shared_from_this(), name, slot, give_up](bool open) {
    self->Post([self = self.get(), name, slot, give_up, open] {
      const auto found = self->pending_.find(name);
      if (found == self->pending_.end()) return;
      Pending& pending = found->second;
      if (!open) {
        self->StartChange(&pending);
      } else if (self->deps_.clock->Now() < give_up) {
        self->strand_.PostAfter(kSeatPoll, [self = self->shared_from_this(), name, slot, give_up] {
          self->AwaitSeat(name, slot, give_up);
        });
      } else {
        pending.newcomers.erase(slot);
        const auto waiting = pending.waiting.extract(slot);
        if (waiting.empty()) return;
        waiting.mapped().done(ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kSlotTaken,
                                            absl::StrCat("slot ", slot, " of job \"", name,
                                                         "\" is held by a process that is alive; ",
                                                         "end it first, or check the ranks"),
                                            {.job = name, .slot = static_cast<int>(slot)}));
      }
    });
  });
}

void Directory::StartChange(Pending* pending) {
  if (pending->change.has_value()) return;  // When it is over, those who came late have their turn.
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
  if (pending.plan.epoch.epoch != epoch) return;
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
      if (status.ok()) {
        self->AdoptEverywhere(name, plan);
      } else {
        self->OnAdopted(name, plan, status);
      }
    });
  });
}

void Directory::AdoptEverywhere(const std::string& name, const JobPlan& plan) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  it->second.plan = plan;
  auto gather = std::make_shared<Gather>(
      plan.servers.size() - 1, [self = shared_from_this(), name, plan](const absl::Status& status) {
        self->Post(
            [self = self.get(), name, plan, status] { self->OnAdopted(name, plan, status); });
      });
  for (const uint32_t server : plan.servers) {
    if (server == config_.self) continue;
    peers_->AdoptEpoch(server, plan, [gather](const absl::Status& status) { gather->Add(status); });
  }
}

void Directory::OnAdopted(const std::string& name, const JobPlan& plan,
                          const absl::Status& status) {
  const auto it = pending_.find(name);
  if (it == pending_.end()) return;
  Pending& pending = it->second;
  if (!status.ok() && pending.plan.epoch.epoch == plan.epoch.epoch) {
    // The record is final, so the rest must follow; a server may be away for longer.
    BALLAST_LOG(WARN, LogField("run", name))
        << "epoch " << plan.epoch.epoch << " is not adopted everywhere yet: " << status;
    AdoptEverywhere(name, plan);
    return;
  }
  EndChange(&pending, status);
}

// Answers everybody whose seat is settled now; others start the next change.
void Directory::EndChange(Pending* pending, const absl::Status& status) {
  pending->change.reset();
  std::map<uint32_t, Waiting> waiting = std::exchange(pending->waiting, {});
  const AttachResult result = ResultOf(*pending);
  bool again = false;
  for (auto& [slot, call] : waiting) {
    const bool seated = pending->plan.epoch.members[slot].incarnation == call.incarnation;
    if (!status.ok() || seated) {
      pending->newcomers.erase(slot);
      call.done(status.ok() ? absl::StatusOr<AttachResult>(result) : status);
    } else {
      pending->waiting[slot] = std::move(call);
      again = true;
    }
  }
  if (again) StartChange(pending);
}

// --- At every server ----------------------------------------------------------------------------

void Directory::SealLocal(uint64_t job, uint32_t epoch,
                          const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  const std::shared_ptr<RoundEngine> engine = Find(job);
  if (engine == nullptr || store_ == nullptr || local_.count(job) == 0) {
    done(ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("server ", config_.self, " has no durable job ", job)));
    return;
  }
  engine->Seal(epoch, [self = shared_from_this(), job, epoch,
                       done](const absl::StatusOr<SealAnswer>& answer) {
    self->Post([self = self.get(), job, epoch, done, answer] {
      const auto local = self->local_.find(job);
      if (!answer.ok() || local == self->local_.end()) {
        done(answer);
        return;
      }
      // The promise must outlive this process before anybody builds on it.
      JobPlan sealed = local->second.plan;
      sealed.sealed_epoch = epoch;
      const absl::Status saved = self->store_->Save(sealed);
      if (saved.ok()) {
        local->second.plan = std::move(sealed);
        done(answer);
      } else {
        done(saved);
      }
    });
  });
}

void Directory::AdoptLocal(const JobPlan& plan, const std::function<void(absl::Status)>& done) {
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  if (engine == nullptr || store_ == nullptr || local_.count(plan.job) == 0) {
    done(ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("server ", config_.self, " has no durable job ", plan.job)));
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
    for (const auto& [name, pending] : pending_) {
      for (const uint32_t server : pending.plan.servers) {
        if (server == config_.self) continue;
        peers_->AdoptEpoch(server, pending.plan, [](const absl::Status&) {});
      }
    }
  });
}

}  // namespace ballast::server
