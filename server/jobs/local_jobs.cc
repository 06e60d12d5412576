// LocalJobs: how a job comes to this server, and goes. See local_jobs.h.
#include "server/jobs/local_jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "common/text/names.h"

namespace ballast::server {
namespace {

absl::Status NoDataDir(const JobPlan& plan, int self) {
  return ReasonedError(
      absl::StatusCode::kFailedPrecondition, Reason::kBadSpec,
      absl::StrCat("job \"", plan.spec.name, "\" wants durability, but server ", self,
                   " has no storage.data_dir; set one, or use durability none"),
      {.job = plan.spec.name, .server = self});
}

absl::Status StrangeFiles(const JobPlan& other, const JobStore& store, const ThisServer& self) {
  const std::string& name = other.spec.name;
  const std::string directory = store.Directory(other.job);
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat("server ", self.id(), " has files of job \"", name, "\" (", JobIdText(other.job),
                   ", epoch ", other.epoch.epoch, "), of which its home, server ", self.home().id,
                   ", has no record. Put back that server's data directory; or give the job up: "
                   "stop server ",
                   self.id(), ", give ", directory, " the name ", directory, ".gone, and start it"),
      {.job = name, .server = static_cast<int>(self.id())});
}

absl::Status Superseded(const JobPlan& plan, uint64_t by, int self) {
  return ReasonedError(
      absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
      absl::StrCat("this order to make job \"", plan.spec.name, "\" (", JobIdText(plan.job),
                   ") comes late: a later attempt of its home has made job ", JobIdText(by),
                   " of that name here; there is nothing to do"),
      {.job = plan.spec.name, .server = self});
}

// An order of an attempt that the home has given up may come after that of a later one.
absl::Status CheckNewest(const JobPlan& plan, const std::map<uint64_t, LocalJobs::Entry>& jobs,
                         int self) {
  for (const auto& [job, local] : jobs) {
    const bool later = plan.making && local.plan.attempt.IsAfter(plan.attempt);
    if (later && local.plan.name() == plan.name()) return Superseded(plan, job, self);
  }
  return absl::OkStatus();
}

// Whether a vote was given in a job that does not run. What cannot be read may be anything.
bool ProgressOnDisk(const JobPlan& plan, JobStore* store) {
  const auto storage = store->Open(plan);
  if (!storage.ok()) return true;
  const auto& rounds = (*storage)->log()->rounds();
  return std::any_of(rounds.begin(), rounds.end(),
                     [](const auto& round) { return round.second.prepared.has_value(); });
}

}  // namespace

std::shared_ptr<RoundEngine> LocalJobs::Find(uint64_t job) const {
  MutexLock lock(&mu_);
  const auto it = engines_.find(job);
  return it == engines_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<RoundEngine>> LocalJobs::Engines() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<RoundEngine>> engines;
  for (const auto& [job, engine] : engines_) engines.push_back(engine);
  return engines;
}

void LocalJobs::Abandon() {
  decltype(engines_) engines;  // Destroyed without the lock.
  MutexLock lock(&mu_);
  engines.swap(engines_);
}

const LocalJobs::Entry* LocalJobs::Get(uint64_t job) const {
  const auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : &it->second;
}

bool LocalJobs::Runs(uint64_t job) const {
  const Entry* const known = Get(job);
  return known != nullptr && !known->ended;
}

void LocalJobs::Ask(const std::shared_ptr<RoundEngine>& engine,
                    const std::function<void(const JobStatus&)>& done) {
  engine->Status(parts_.strand->Bind(done));
}

// --- Making -------------------------------------------------------------------------------------

absl::Status LocalJobs::Make(const JobPlan& plan) {
  BALLAST_RETURN_IF_ERROR(parts_.self->CheckServers(plan));
  // One that rests is read again whenever trainers wake it.
  const DamagedJobs::Ref damaged = parts_.damaged->Find(plan.job);
  if (damaged != nullptr && !damaged->plan.resting) return damaged->why;
  const auto ended = jobs_.find(plan.job);
  const bool again = ended != jobs_.end() && ended->second.ended;
  if (IsDurable(plan) && again && !BALLAST_MUTANT(kWakeKeepsEnded)) Drop(plan.job);
  if (const auto known = jobs_.find(plan.job); known != jobs_.end()) {
    return CheckSame(plan, &known->second);
  }
  if (parts_.self->stopping()) return parts_.self->CheckHome();
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config().limits));
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  BALLAST_RETURN_IF_ERROR(CheckRoom(plan));  // Before files are made.
  if (IsDurable(plan) && parts_.store != nullptr) {
    const absl::Status found = parts_.store->Find(plan.job).status();
    if (found.ok()) return Reopen(plan);
    if (!absl::IsNotFound(found)) return found;
  }
  return MakeNew(plan);
}

absl::Status LocalJobs::CheckSame(const JobPlan& plan, Entry* known) {
  known->told = ++told_;
  const bool same = known->plan.name() == plan.name() && known->plan.owner == plan.owner;
  if (same && FirstDifference(known->plan.spec, plan.spec).empty()) {
    return absl::OkStatus();
  }
  return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                       absl::StrCat("job ", JobIdText(plan.job), " exists with another plan"),
                       {.job = plan.spec.name, .server = self()});
}

absl::Status LocalJobs::CheckRoom(const JobPlan& plan) {
  absl::Status fits = parts_.memory->Plan(plan).status();
  // A tenant above its quota makes room among its own.
  const bool over_quota = ReasonOf(fits) == Reason::kOverQuota;
  if (!over_quota && ReasonOf(fits) != Reason::kOverBudget) return fits;
  if (DropEnded(over_quota ? &plan.tenant : nullptr)) fits = parts_.memory->Plan(plan).status();
  const bool waits = !fits.ok() && parts_.memory->FitsAlone(plan);
  return waits ? parts_.listener->NoRoom(plan, fits) : fits;
}

absl::Status LocalJobs::MakeNew(const JobPlan& plan) {
  std::unique_ptr<JobStorage> storage;
  if (IsDurable(plan)) {
    BALLAST_ASSIGN_OR_RETURN(storage, MakeStorage(plan));
  }
  JobPlan made = plan;
  made.making = false;
  const absl::StatusOr<MemoryPlan> memory = parts_.memory->Plan(made);
  const absl::Status opened = Open(made, parts_.memory->Begin(made, memory), std::move(storage));
  if (opened.ok()) Find(plan.job)->Start();
  if (!opened.ok() && IsDurable(plan)) (void)parts_.store->Remove(plan.job);
  return opened;
}

absl::StatusOr<std::unique_ptr<JobStorage>> LocalJobs::MakeStorage(const JobPlan& plan) {
  if (parts_.store == nullptr) return NoDataDir(plan, self());
  // When a job is not new, every server has told the home that it has files.
  if (!plan.making) {
    return parts_.damaged->Lacks({plan.job, plan.name(), plan.servers, true},
                                 parts_.self->home().id);
  }
  JobPlan record = plan;
  record.making = parts_.self->id() == plan.servers.front() && plan.servers.size() > 1;
  return parts_.store->Create(record);
}

// A job that rested here, as this server left it; `plan` is the home's copy.
absl::Status LocalJobs::Reopen(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const JobPlan ours, parts_.store->Find(plan.job));
  const bool same = ours.name() == plan.name() && ours.owner == plan.owner;
  if (!same || !FirstDifference(ours.spec, plan.spec).empty()) {
    return ReasonedError(
        absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
        absl::StrCat("job ", JobIdText(plan.job), " exists on disk with another plan"),
        {.job = plan.spec.name, .server = self()});
  }
  BALLAST_RETURN_IF_ERROR(parts_.holds->LetGo(plan));
  absl::StatusOr<std::unique_ptr<JobStorage>> storage = OpenStorage(ours);
  if (!storage.ok()) return parts_.damaged->Note(ours, storage.status());
  const auto memory = parts_.memory->Begin(ours, parts_.memory->Plan(ours));
  BALLAST_RETURN_IF_ERROR(parts_.damaged->Note(ours, Open(ours, memory, *std::move(storage))));
  parts_.damaged->Remove(plan.job);
  Find(plan.job)->Start();
  return absl::OkStatus();
}

absl::Status LocalJobs::Open(const JobPlan& plan, const absl::StatusOr<MemoryPlan>& held,
                             std::unique_ptr<JobStorage> storage) {
  BALLAST_ASSIGN_OR_RETURN(MemoryPlan memory, held);
  absl::StatusOr<std::shared_ptr<RoundEngine>> engine =
      MakeEngine(plan, memory, std::move(storage));
  if (!engine.ok()) {
    parts_.memory->End(plan, &memory);
    ForgetMetrics(plan.name());  // Its series began with the first read of its files.
    return engine.status();
  }
  jobs_.emplace(plan.job, Entry{.plan = plan, .memory = memory, .told = ++told_});
  MutexLock lock(&mu_);
  engines_[plan.job] = *std::move(engine);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RoundEngine>> LocalJobs::MakeEngine(
    const JobPlan& plan, const MemoryPlan& memory, std::unique_ptr<JobStorage> storage) {
  EngineConfig engine_config = config().engine;
  engine_config.self = parts_.self->id();
  engine_config.window_extents = memory.window_extents;
  engine_config.nvme_extents = memory.nvme_extents;
  const bool on_disk = parts_.store != nullptr && IsDurable(plan);
  const uint64_t disk = on_disk ? parts_.store->DiskBytes(plan, parts_.self->id()) : 0;
  BALLAST_LOG(INFO, LogField("run", plan.spec.name))
      << MemoryText(memory, parts_.memory->RoomOf(plan, memory), disk);
  BALLAST_ASSIGN_OR_RETURN(std::shared_ptr<RoundEngine> engine,
                           RoundEngine::Create(plan, engine_config, deps_, std::move(storage)));
  engine->OnEnd(
      parts_.strand->BindWeakly([this, job = plan.job](const absl::Status& why, uint64_t round) {
        OnEnded(job, why, round);
      }));
  engine->trainers().OnSeatFree(parts_.strand->BindWeakly(
      [this, name = plan.name()](uint32_t slot, uint64_t incarnation, bool left) {
        parts_.listener->OnSeatFree(name, slot, incarnation, left);
      }));
  return engine;
}

// --- Where the home does not know a job of this name --------------------------------------------

// Jobs here may rest at the home, although this server has missed their end: they are asked for
// before the job is refused for lack of room.
void LocalJobs::CreateJob(JobPlan plan, Done done) {
  const Done placed = Placed(std::move(done));
  parts_.strand->Post([this, plan = std::move(plan), placed] {
    parts_.listener->OnJobOrdered(plan);
    MakeForHome(plan, [=, this](const absl::Status& made) {
      const Reason why = ReasonOf(made);
      if (why != Reason::kOverBudget && why != Reason::kOverQuota) return placed(made);
      parts_.listener->FindRoom([=, this](const absl::Status& found) {
        found.ok() ? MakeForHome(plan, placed) : placed(made);
      });
    });
  });
}

LocalJobs::Done LocalJobs::Placed(Done done) const {
  return [self = parts_.self, done = std::move(done)](const absl::Status& status) {
    done(self->WithPlace(status));
  };
}

// Either the creation of the other job was broken off, or the home has lost its records: then the
// job must not begin again unnoticed.
void LocalJobs::MakeForHome(const JobPlan& plan, const Done& done) {
  if (absl::Status st = CheckNewest(plan, jobs_, self()); !st.ok()) return done(st);
  const bool fresh = plan.making && IsDurable(plan) && parts_.store != nullptr;
  const absl::StatusOr<JobPlan> other =
      fresh ? parts_.store->FindNamed(plan.name()) : absl::NotFoundError("");
  if (absl::IsNotFound(other.status()) || (other.ok() && other->job == plan.job)) {
    return done(Make(plan));
  }
  if (!other.ok()) return done(other.status());
  // Before any other answer: the other job may have run long since.
  if (other->attempt.IsAfter(plan.attempt)) return done(Superseded(plan, other->job, self()));
  // Its home may be another server, or have been taken away.
  if (absl::Status here = parts_.self->CheckServers(*other); !here.ok()) return done(here);
  const std::shared_ptr<RoundEngine> engine = Find(other->job);
  if (engine == nullptr || !Runs(other->job)) {
    return done(MakeInPlaceOf(*other, ProgressOnDisk(*other, parts_.store), plan));
  }
  Ask(engine, [this, engine, other = *other, plan, done](const JobStatus& status) {
    const bool progress =
        status.round > 1 || status.phase == "prepared" || status.phase == "applying";
    // Another order may have put a job in its place meanwhile.
    const absl::StatusOr<JobPlan> present = parts_.store->FindNamed(plan.name());
    const bool same = present.ok() && present->job == other.job;
    same ? done(MakeInPlaceOf(other, progress, plan)) : MakeForHome(plan, done);
  });
}

absl::Status LocalJobs::MakeInPlaceOf(const JobPlan& other, bool progress, const JobPlan& plan) {
  if (progress || other.epoch.epoch > 1) return StrangeFiles(other, *parts_.store, *parts_.self);
  const std::string& name = plan.spec.name;
  BALLAST_LOG(WARN, LogField("run", name))
      << "clearing away job " << JobIdText(other.job) << ", whose creation was broken off";
  if (const auto engine = Find(other.job); engine != nullptr) {
    engine->Fail(ReasonedError(absl::StatusCode::kUnavailable, Reason::kJobFailed,
                               "its creation was broken off", {.job = name}));
  }
  BALLAST_RETURN_IF_ERROR(Forget(other.job));
  return Make(plan);
}

// --- Ending -------------------------------------------------------------------------------------

// The state of a job that ended stays readable for job_ttl. Then its memory is given back. A failed
// job rests, too: its committed rounds are kept. A job interrupted by this server's end runs again
// after the next start.
void LocalJobs::OnEnded(uint64_t job, const absl::Status& why, uint64_t round) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  it->second.ended = true;
  JobPlan& plan = it->second.plan;
  parts_.memory->TakeBack(plan, &it->second.memory, &it->second.promised);
  const bool rests = IsDurable(plan) && ReasonOf(why) != Reason::kShuttingDown;
  if (rests) {
    plan.resting = true;
    plan.resting_round = round;
    const absl::Status saved = parts_.store->Save(plan);
    if (!saved.ok()) BALLAST_LOG(ERROR, LogField("run", plan.spec.name)) << saved;
  }
  const bool lost = ReasonOf(why) == Reason::kStateLost && FieldsOf(why).server == self();
  if (rests && lost) parts_.damaged->Add(plan, why);
  parts_.listener->OnJobEnded(plan, rests, why);
  DropLater(job);
}

// Unless the job runs again by then: the same job in another engine.
void LocalJobs::DropLater(uint64_t job) {
  parts_.strand->PostAfter(config().job_ttl, [this, job, ended = std::weak_ptr(Find(job))] {
    const std::shared_ptr<RoundEngine> engine = ended.lock();
    if (engine != nullptr && engine == Find(job)) Drop(job);
  });
}

void LocalJobs::Drop(uint64_t job) {
  {
    MutexLock lock(&mu_);
    engines_.erase(job);
  }
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  parts_.memory->End(it->second.plan, &it->second.memory);
  const JobPlan plan = std::move(it->second.plan);
  jobs_.erase(it);
  parts_.listener->OnJobDropped(plan);
  ForgetMetrics(plan.name());
}

void LocalJobs::ForgetMetrics(const QualifiedName& name) {
  const bool in_use = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second.plan.name() == name;
  });
  if (deps_.metrics != nullptr && !in_use) deps_.metrics->RemoveJob(name);
}

bool LocalJobs::DropEnded(const std::string* tenant) {
  std::vector<uint64_t> ended;
  for (const auto& [job, local] : jobs_) {
    const bool meant = tenant == nullptr || local.plan.tenant == *tenant;
    if (local.ended && meant) ended.push_back(job);
  }
  for (const uint64_t job : ended) Drop(job);
  return !ended.empty();
}

absl::Status LocalJobs::Forget(uint64_t job) {
  Drop(job);
  parts_.holds->Release(job);
  const absl::Status removed =
      parts_.store == nullptr ? absl::OkStatus() : parts_.store->Remove(job);
  if (removed.ok()) {
    parts_.damaged->Remove(job);
    parts_.listener->OnJobForgotten(job);
  } else {
    BALLAST_LOG(ERROR, LogField("job", JobIdText(job))) << "left on disk: " << removed;
  }
  return removed;
}

void LocalJobs::DropJob(uint64_t job, Done done) {
  parts_.strand->Run([this, job, done = std::move(done)] {
    if (parts_.work->CancelMaking(job, [this, job, done] { DropJob(job, done); })) return;
    const std::shared_ptr<RoundEngine> engine = Find(job);
    if (engine == nullptr || !Runs(job) || !IsDurable(Get(job)->plan)) return done(Forget(job));
    engine->Fail(JobDeleted(Get(job)->plan));
    // After the engine's end, which closes the files.
    Ask(engine, [this, job, done](const JobStatus&) { done(Forget(job)); });
  });
}

absl::Status JobDeleted(const JobPlan& plan) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFailed,
                       absl::StrCat("job \"", plan.spec.name, "\" was deleted by an operator"),
                       {.job = plan.spec.name});
}

}  // namespace ballast::server
