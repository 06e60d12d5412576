// Directory: the jobs as this server holds them: memory, engines, files, ends. See directory.h.
// Thread safety: on the strand, apart from Recover, which runs before anything else.
#include <algorithm>
#include <utility>

#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "server/cluster/directory.h"

namespace ballast::server {

absl::StatusOr<MemoryPlan> Directory::PlanHere(const JobPlan& plan) const {
  return PlanMemory(plan, config_.self, FreeRoom(), config_.window_extents_min);
}

MemoryRoom Directory::FreeRoom() const {
  const uint64_t used = memory_used_bytes() + memory_reserved_;
  const uint64_t state = state_used_ + state_reserved_;
  return {.bytes = config_.memory_budget_bytes - std::min(config_.memory_budget_bytes, used),
          .state_bytes = config_.state_budget_bytes - std::min(config_.state_budget_bytes, state),
          .nvme_extents = std::nullopt};
}

// A job that runs keeps its tier.
MemoryRoom Directory::RoomOf(const Local& local) const {
  MemoryRoom room = FreeRoom();
  room.bytes += std::min(local.memory.total(), UINT64_MAX - room.bytes);
  room.state_bytes += std::min(local.memory.state_bytes, UINT64_MAX - room.state_bytes);
  room.nvme_extents = local.memory.nvme_extents;
  return room;
}

// Gives back what ended jobs hold before their job_ttl is over. Returns whether there were any.
bool Directory::DropEnded() {
  std::vector<uint64_t> ended;
  for (const auto& [job, local] : local_) {
    if (local.ended) ended.push_back(job);
  }
  for (const uint64_t job : ended) Drop(job);
  return !ended.empty();
}

absl::Status Directory::CreateLocal(const JobPlan& plan) {
  const bool durable = plan.spec.durability != Durability::kNone;
  const auto ended = local_.find(plan.job);
  if (durable && ended != local_.end() && ended->second.ended) Drop(plan.job);
  if (const auto known = local_.find(plan.job); known != local_.end()) {
    const JobPlan& ours = known->second.plan;
    known->second.told = ++told_;
    if (FirstDifference(ours.spec, plan.spec).empty() && ours.owner == plan.owner) {
      return absl::OkStatus();
    }
    return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                         absl::StrCat("job ", JobIdText(plan.job), " exists with another plan"),
                         {.job = plan.spec.name, .server = static_cast<int>(config_.self)});
  }
  if (shutting_down_) return CheckHome();
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config_.limits));
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  // Whether it fits is asked before files are made.
  absl::Status fits = PlanHere(plan).status();
  if (ReasonOf(fits) == Reason::kOverBudget && DropEnded()) fits = PlanHere(plan).status();
  if (ReasonOf(fits) == Reason::kOverBudget) return NoRoom(plan, fits);
  BALLAST_RETURN_IF_ERROR(fits);
  if (durable && store_ != nullptr) {
    const absl::Status found = store_->Find(plan.job).status();
    if (found.ok()) return ReopenLocal(plan);
    if (!absl::IsNotFound(found)) return found;
  }
  std::unique_ptr<JobStorage> storage;
  if (durable) {
    BALLAST_ASSIGN_OR_RETURN(storage, MakeStorage(plan));
  }
  JobPlan made = plan;
  made.making = false;
  const absl::Status opened = OpenLocal(made, std::move(storage));
  if (opened.ok()) Find(plan.job)->Start();
  if (!opened.ok() && durable) (void)store_->Remove(plan.job);
  return opened;
}

// A new job of the home. If another of its name is here, either its creation was broken off, or the
// home has lost its records: then the job must not begin again unnoticed.
void Directory::CreateAtPeer(const JobPlan& plan, const std::function<void(absl::Status)>& done) {
  const bool fresh = plan.making && plan.spec.durability != Durability::kNone && store_ != nullptr;
  const absl::StatusOr<JobPlan> other =
      fresh ? store_->FindNamed(plan.spec.name) : absl::NotFoundError("");
  if (absl::IsNotFound(other.status()) || (other.ok() && other->job == plan.job)) {
    return done(CreateLocal(plan));
  }
  if (!other.ok()) return done(other.status());
  const auto local = local_.find(other->job);
  const std::shared_ptr<RoundEngine> engine = Find(other->job);
  if (engine == nullptr || local == local_.end() || local->second.ended) {
    return done(CreateInPlaceOf(*other, ProgressOnDisk(*other), plan));
  }
  AskEngine(engine, [this, self = shared_from_this(), engine, other = *other, plan,
                     done](const JobSnapshot& snapshot) {
    const bool progress =
        snapshot.round > 1 || snapshot.phase == "prepared" || snapshot.phase == "applying";
    done(CreateInPlaceOf(other, progress, plan));
  });
}

absl::Status Directory::CreateInPlaceOf(const JobPlan& other, bool progress, const JobPlan& plan) {
  const std::string& name = plan.spec.name;
  if (progress || other.epoch.epoch > 1) {
    const std::string directory = store_->Directory(other.job);
    return ReasonedError(
        absl::StatusCode::kDataLoss, Reason::kStateLost,
        absl::StrCat("server ", config_.self, " has files of job \"", name, "\" (",
                     JobIdText(other.job), ", epoch ", other.epoch.epoch,
                     "), of which its home, server ", config_.servers.front().id,
                     ", has no record. Put back that server's data directory; or give the job up: "
                     "stop server ",
                     config_.self, ", give ", directory, " the name ", directory,
                     ".gone, and start it"),
        {.job = name, .server = static_cast<int>(config_.self)});
  }
  BALLAST_LOG(WARN, LogField("run", name))
      << "clearing away job " << JobIdText(other.job) << ", whose creation was broken off";
  if (const auto engine = Find(other.job); engine != nullptr) {
    engine->Fail(ReasonedError(absl::StatusCode::kUnavailable, Reason::kJobFailed,
                               "its creation was broken off", {.job = name}));
  }
  BALLAST_RETURN_IF_ERROR(Forget(other.job));
  return CreateLocal(plan);
}

// Whether a vote was given in a job that does not run. What cannot be read may be anything.
bool Directory::ProgressOnDisk(const JobPlan& plan) const {
  const auto storage = store_->Open(plan);
  if (!storage.ok()) return true;
  const auto& rounds = (*storage)->log()->rounds();
  return std::any_of(rounds.begin(), rounds.end(),
                     [](const auto& round) { return round.second.prepared.has_value(); });
}

absl::Status Directory::LostHere(const JobPlan& plan, const absl::Status& status) const {
  if (!absl::IsDataLoss(status)) return status;
  const absl::Status located = ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(status.message(), " [server ", config_.self, ", ", store_->Directory(plan.job),
                   "; if nothing can be put back: ballastctl jobs delete ", plan.spec.name, "]"),
      {.job = plan.spec.name, .server = static_cast<int>(config_.self)});
  BALLAST_LOG(ERROR, LogField("run", plan.spec.name)) << located.message();
  return located;
}

// A job that rested here, as this server left it; `plan` is what the home knows of it.
absl::Status Directory::ReopenLocal(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const JobPlan ours, store_->Find(plan.job));
  if (!FirstDifference(ours.spec, plan.spec).empty() || ours.owner != plan.owner) {
    return ReasonedError(
        absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
        absl::StrCat("job ", JobIdText(plan.job), " exists on disk with another plan"),
        {.job = plan.spec.name, .server = static_cast<int>(config_.self)});
  }
  if (!ReleaseResting(plan.job)) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         absl::StrCat("server ", config_.self, " gives up a snapshot of job \"",
                                      plan.spec.name, "\", which rested; call again"),
                         {.job = plan.spec.name, .server = static_cast<int>(config_.self)});
  }
  absl::StatusOr<std::unique_ptr<JobStorage>> storage = store_->Open(ours);
  if (!storage.ok()) return LostHere(ours, storage.status());
  BALLAST_RETURN_IF_ERROR(LostHere(ours, OpenLocal(ours, *std::move(storage))));
  Find(plan.job)->Start();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobStorage>> Directory::MakeStorage(const JobPlan& plan) {
  // Else every server has told the home that it has files.
  if (!plan.making && store_ != nullptr) {
    return LostHere(
        plan, absl::DataLossError(absl::StrCat(
                  "server ", config_.self, " lacks the files of job \"", plan.spec.name, "\" (",
                  JobIdText(plan.job), "), which was made before, in epoch ", plan.epoch.epoch,
                  " now; check that the right storage.data_dir is mounted, here and at its home")));
  }
  JobPlan record = plan;
  record.making = plan.servers.front() == config_.self && plan.servers.size() > 1;
  if (store_ != nullptr) return store_->Create(record);
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kBadSpec,
      absl::StrCat("job \"", plan.spec.name, "\" wants durability, but server ", config_.self,
                   " has no storage.data_dir; set one, or use durability none"),
      {.job = plan.spec.name, .server = static_cast<int>(config_.self)});
}

absl::Status Directory::OpenLocal(const JobPlan& plan, std::unique_ptr<JobStorage> storage) {
  absl::StatusOr<MemoryPlan> planned = PlanHere(plan);
  BALLAST_ASSIGN_OR_RETURN(const MemoryPlan memory, std::move(planned));
  Local local;
  local.plan = plan;
  local.told = ++told_;
  EngineConfig engine_config = config_.engine;
  engine_config.self = config_.self;
  engine_config.window_extents = memory.window_extents;
  engine_config.nvme_extents = memory.nvme_extents;
  const uint64_t disk = store_ == nullptr || plan.spec.durability == Durability::kNone
                            ? 0
                            : store_->DiskBytes(plan, config_.self);
  BALLAST_LOG(INFO, LogField("run", plan.spec.name)) << MemoryText(memory, FreeRoom(), disk);
  BALLAST_ASSIGN_OR_RETURN(std::shared_ptr<RoundEngine> engine,
                           RoundEngine::Create(plan, engine_config, deps_, std::move(storage)));
  engine->OnEnd([self = weak_from_this(), job = plan.job](const absl::Status& why, uint64_t round) {
    if (auto directory = self.lock()) {
      directory->Post([directory = directory.get(), job, why, round] {
        directory->OnJobEnded(job, why, round);
      });
    }
  });
  engine->OnSeatFree([self = weak_from_this(), name = plan.spec.name](
                         uint32_t slot, uint64_t incarnation, bool left) {
    if (auto directory = self.lock()) {
      directory->Post([directory = directory.get(), name, slot, incarnation, left] {
        directory->OnSeatFree(name, slot, incarnation, left);
      });
    }
  });
  SetMemory(&local, memory);
  local_.emplace(plan.job, std::move(local));
  MutexLock lock(&mu_);
  engines_[plan.job] = std::move(engine);
  return absl::OkStatus();
}

absl::Status Directory::Recover() {
  if (store_ == nullptr) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::vector<JobPlan> plans, store_->Load());
  const bool home = IsHome();
  BALLAST_ASSIGN_OR_RETURN(ordered_only_, store_->OrderedOnly());
  // So that the first of them, which takes for its cache what is free, leaves room for the others.
  const auto reserve = [this](const JobPlan& plan, uint64_t sign) {
    const MemoryPlan least = LeastMemory(plan, config_.self, config_.window_extents_min);
    memory_reserved_ += sign * least.total();
    state_reserved_ += sign * least.state_bytes;
  };
  for (const JobPlan& plan : plans) {
    if (!plan.resting) reserve(plan, 1);
  }
  for (JobPlan plan : plans) {
    if (!plan.resting) reserve(plan, UINT64_MAX);  // Minus one.
    if (plan.resting) {
      if (home) resting_[plan.spec.name] = plan;
      continue;
    }
    BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("job", JobIdText(plan.job)))
        << "recovering";
    BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config_.limits));
    BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
    // The last process may have ended before this was on the medium; others will build on it now.
    BALLAST_RETURN_IF_ERROR(store_->Save(plan));
    const bool making = std::exchange(plan.making, false);
    BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStorage> storage, store_->Open(plan));
    BALLAST_RETURN_IF_ERROR(OpenLocal(plan, std::move(storage)));
    if (!home) continue;
    Pending& pending = pending_.emplace(plan.spec.name, Pending(plan)).first->second;
    pending.generation = next_generation_++;
    pending.created = pending.unconfirmed = !making;
    pending.creating = making;
  }
  return absl::OkStatus();
}

// A job that ended keeps its state readable for job_ttl, then gives its memory back.
void Directory::OnJobEnded(uint64_t job, const absl::Status& why, uint64_t round) {
  const auto it = local_.find(job);
  if (it == local_.end()) return;
  it->second.ended = true;
  JobPlan& plan = it->second.plan;
  // A job that failed rests, too: what was committed is kept. One that this server's end broke off
  // goes on when it starts again.
  if (plan.spec.durability != Durability::kNone && ReasonOf(why) != Reason::kShuttingDown) {
    plan.resting = true;
    plan.resting_round = round;
    const absl::Status saved = store_->Save(plan);
    if (!saved.ok()) BALLAST_LOG(ERROR, LogField("run", plan.spec.name)) << saved;
    if (IsHome()) resting_[plan.spec.name] = plan;
  }
  const auto pending = pending_.find(it->second.plan.spec.name);
  if (pending != pending_.end() && pending->second.plan.job == job) {
    pending->second.unconfirmed = false;
    if (plan.resting && ReasonOf(why) == Reason::kJobFinished) AskAgain(&pending->second);
    FailPending(&pending->second, why);
  }
  // Unless somebody has gone on with it by then: the same job in another engine.
  strand_.PostAfter(config_.job_ttl,
                    [self = shared_from_this(), job, ended = std::weak_ptr(Find(job))] {
                      const std::shared_ptr<RoundEngine> engine = ended.lock();
                      if (engine != nullptr && engine == self->Find(job)) self->Drop(job);
                    });
}

// Processes that wait for a seat of a job that all have left go on with it when they call again.
void Directory::AskAgain(Pending* pending) {
  const std::string& name = pending->plan.spec.name;
  for (auto& [slot, waiting] : std::exchange(pending->waiting, {})) {
    waiting.done(ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                               absl::StrCat("job \"", name, "\" has just come to rest"),
                               {.job = name, .slot = static_cast<int>(slot)}));
  }
}

void Directory::Drop(uint64_t job) {
  {
    MutexLock lock(&mu_);
    engines_.erase(job);
  }
  const auto it = local_.find(job);
  if (it == local_.end()) return;
  SetMemory(&it->second, MemoryPlan());
  const auto pending = pending_.find(it->second.plan.spec.name);
  if (pending != pending_.end() && pending->second.created && pending->second.plan.job == job) {
    pending_.erase(pending);
  }
  const std::string name = it->second.plan.spec.name;
  local_.erase(it);
  const bool name_in_use = std::any_of(local_.begin(), local_.end(), [&](const auto& entry) {
    return entry.second.plan.spec.name == name;
  });
  if (deps_.metrics != nullptr && !name_in_use) deps_.metrics->RemoveJob(name);
  ReportMemory();
}

absl::Status Directory::Forget(uint64_t job) {
  Drop(job);
  ReleaseResting(job);
  std::erase_if(resting_, [job](const auto& entry) { return entry.second.job == job; });
  if (store_ == nullptr) return absl::OkStatus();
  const absl::Status removed = store_->Remove(job);
  if (!removed.ok()) {
    BALLAST_LOG(ERROR, LogField("job", JobIdText(job))) << "left on disk: " << removed;
  }
  return removed;
}

void Directory::DropAtPeer(uint32_t server, uint64_t job) {
  peers_->DropJob(server, job, [server](const absl::Status& status) {
    if (status.ok()) return;
    BALLAST_LOG(WARN, LogField("server", server)) << "cannot drop a job there: " << status;
  });
}

// A job that is not made yet, or a variable world that comes together to begin again.
bool Directory::IsAttaching(const Pending& pending) {
  const bool made = pending.created || pending.creating;
  return !made || (pending.gathers && !pending.newcomers.empty());
}

JobSnapshot Directory::AttachingSnapshot(const std::string& name, const Pending& pending) const {
  JobSnapshot job{.name = name, .job = pending.plan.job, .state = "attaching"};
  const Gathering gathering = GatheringOf(pending);
  job.world = pending.gathers ? gathering.world : pending.home.spec().world;
  for (uint32_t s = 0; s < job.world; ++s) job.slots.push_back({.slot = s, .state = "attached"});
  for (const uint32_t s : pending.gathers ? gathering.Missing() : pending.home.MissingSlots()) {
    job.slots[s].state = "absent";
  }
  return job;
}

void Directory::DoSnapshot(const std::function<void(std::vector<JobSnapshot>)>& done) {
  struct Collected {
    Mutex mu;
    std::vector<JobSnapshot> jobs ABSL_GUARDED_BY(mu);
  };
  auto collected = std::make_shared<Collected>();
  auto engines = Engines();
  for (const auto& [name, pending] : pending_) {
    if (!IsAttaching(pending)) continue;
    std::erase_if(engines, [&](const auto& engine) { return engine->job() == pending.plan.job; });
    MutexLock lock(&collected->mu);
    collected->jobs.push_back(AttachingSnapshot(name, pending));
  }
  auto gather = std::make_shared<Gather>(engines.size(), [collected, done](absl::Status) {
    MutexLock lock(&collected->mu);
    std::sort(collected->jobs.begin(), collected->jobs.end(),
              [](const JobSnapshot& a, const JobSnapshot& b) { return a.name < b.name; });
    done(collected->jobs);
  });
  for (const auto& engine : engines) {
    engine->Snapshot([collected, gather](JobSnapshot job) {
      {
        MutexLock lock(&collected->mu);
        collected->jobs.push_back(std::move(job));
      }
      gather->Add(absl::OkStatus());
    });
  }
}

}  // namespace ballast::server
