// LocalJobs: how jobs are opened after a start of the server, and how a job changes here: its
// epoch, its world and its layout. See local_jobs.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"
#include "common/text/names.h"
#include "server/jobs/local_jobs.h"
#include "server/round/no_job.h"

namespace ballast::server {
namespace {

// Drops ended jobs, where their room may help the plan: those of its tenant, if the tenant is at
// its quota. Returns whether there were any.
bool MakeRoom(const JobPlan& plan, const absl::Status& lacks, LocalJobs* jobs) {
  if (ReasonOf(lacks) == Reason::kOverQuota) return jobs->DropEnded(&plan.tenant);
  return ReasonOf(lacks) == Reason::kOverBudget && jobs->DropEnded(/*tenant=*/nullptr);
}

// As above, for a seal that granted less than was wanted. Without a refusal memory was short.
bool MakeRoom(const JobPlan& plan, const MemoryBook::Grant& less, LocalJobs* jobs) {
  return less.refusal.ok() ? jobs->DropEnded(/*tenant=*/nullptr)
                           : MakeRoom(plan, less.refusal, jobs);
}

GrowthFiles FilesOfGrowth(JobStore* store) {
  return {.make = [store](const JobPlan& grown) { return store->Grow(grown); },
          .save = [store](const JobPlan& grown) { return store->Save(grown); },
          .drop_old = [store](const JobPlan& grown) { store->DropOutgrown(grown); }};
}

}  // namespace

bool LocalJobs::Knows(uint64_t job) const {
  return Find(job) != nullptr && parts_.store != nullptr && Get(job) != nullptr;
}

// --- After a start ------------------------------------------------------------------------------

// The first job takes all free memory for its cache, so room for the others is set aside before.
absl::Status LocalJobs::Recover() {
  if (parts_.store == nullptr) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(std::vector<JobStore::Found> found, parts_.store->Load());
  for (auto& [plan, files] : found) {
    if (files.ok()) files = parts_.self->CheckServers(plan);
    if (!files.ok() || plan.resting) continue;
    // The last process may have ended before this was on the medium; others will build on it now.
    if (!BALLAST_MUTANT(kManifestAsRead)) files = parts_.store->Save(plan);
    if (!files.ok() && !absl::IsDataLoss(files)) return files;
    if (files.ok()) parts_.memory->Reserve(plan);
  }
  for (const auto& [plan, files] : found) {
    absl::Status opened = files;
    if (opened.ok() && !plan.resting) {
      parts_.memory->Unreserve(plan);
      opened = RecoverOne(plan);
    }
    if (absl::IsResourceExhausted(opened)) return opened;
    // The other jobs do not depend on this one's files.
    const absl::Status why = parts_.damaged->Note(plan, opened);
    if (!why.ok() && parts_.damaged->Find(plan.job) == nullptr) parts_.damaged->Add(plan, why);
    if (why.ok() || plan.resting) parts_.listener->OnJobFound(plan);
  }
  parts_.memory->WarnIfOver();
  return absl::OkStatus();
}

absl::Status LocalJobs::RecoverOne(JobPlan plan) {
  BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("job", JobIdText(plan.job)))
      << "recovering";
  BALLAST_RETURN_IF_ERROR(ValidateJobSpec(plan.spec, config().limits));
  BALLAST_RETURN_IF_ERROR(CheckPlan(plan));
  plan.making = false;
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStorage> storage, OpenStorage(plan));
  MemoryBook* const memory = parts_.memory;
  return Open(plan, memory->BeginRecovered(plan, memory->PlanRecovered(plan)), std::move(storage));
}

absl::StatusOr<std::unique_ptr<JobStorage>> LocalJobs::OpenStorage(const JobPlan& plan) const {
  const auto began = deps_.clock->Now();
  absl::StatusOr<std::unique_ptr<JobStorage>> storage = parts_.store->Open(plan);
  if (deps_.metrics != nullptr) {
    deps_.metrics->AddRecovery(RecoveryPhase::kOpen, deps_.clock->Now() - began);
  }
  return storage;
}

void LocalJobs::StartRecovered() {
  for (const auto& engine : Engines()) {
    engine->Start(/*restarted=*/true);
    engine->trainers().ExpectSlots();
  }
}

absl::StatusOr<bool> LocalJobs::Retry(const QualifiedName& name) {
  const DamagedJobs::Ref damaged = parts_.damaged->Find(name);
  if (parts_.store == nullptr) return NoJobOfName(name.name);
  const absl::StatusOr<JobPlan> plan =
      damaged == nullptr ? parts_.store->FindNamed(name) : parts_.store->Find(damaged->plan.job);
  if (damaged == nullptr) {
    if (absl::IsNotFound(plan.status())) return NoJobOfName(name.name);
    BALLAST_RETURN_IF_ERROR(plan.status());
    return false;
  }
  if (absl::IsNotFound(plan.status())) {
    // The home has asked for a job of which nothing is here. It asks again if it still has the job.
    parts_.damaged->Remove(damaged->plan.job);
    return damaged->why;
  }
  BALLAST_RETURN_IF_ERROR(plan.status());
  if (parts_.self->stopping()) return parts_.self->ShuttingDown();
  BALLAST_RETURN_IF_ERROR(parts_.self->CheckServers(*plan));
  if (!Runs(plan->job)) Drop(plan->job);
  BALLAST_RETURN_IF_ERROR(parts_.holds->LetGo(*plan));
  const absl::Status opened = plan->resting ? OpenStorage(*plan).status() : RecoverOne(*plan);
  BALLAST_RETURN_IF_ERROR(parts_.damaged->Note(*plan, opened));
  parts_.damaged->Remove(plan->job);
  if (plan->resting) return true;
  const std::shared_ptr<RoundEngine> engine = Find(plan->job);
  engine->Start(/*restarted=*/true);
  engine->trainers().ExpectSlots();
  parts_.listener->OnJobReopened(*plan);
  return true;
}

// --- Epochs -------------------------------------------------------------------------------------

// The promise must outlive this process before another server builds on it. It is saved on the
// engine's strand, as Adopt's record is: a late repetition of the seal must not undo the next
// epoch.
void LocalJobs::Seal(SealCall call, std::function<void(absl::StatusOr<SealAnswer>)> done) {
  parts_.strand->Run([this, call, done = std::move(done)] {
    if (!Knows(call.job)) return done(WhyNotSealed(call.job));
    jobs_.at(call.job).told = ++told_;
    const auto save = [store = parts_.store](const JobPlan& sealed) { return store->Save(sealed); };
    const auto answer = [this, call, done](absl::StatusOr<SealAnswer> sealed) {
      OnSealed(call, &sealed);
      done(sealed);
    };
    Find(call.job)->changes().Seal(call.epoch, save, parts_.strand->Bind(answer));
  });
}

// Room for the next epoch is the job's own from now on: other jobs may be sealed meanwhile.
void LocalJobs::OnSealed(const SealCall& call, absl::StatusOr<SealAnswer>* answer) {
  const auto it = jobs_.find(call.job);
  if (!answer->ok() || it == jobs_.end() || it->second.ended) return;
  Entry& job = it->second;
  if (job.plan.epoch.epoch != call.epoch) return;
  job.plan.sealed_epoch = call.epoch;
  MemoryBook::Grant grant;
  do {
    grant = parts_.memory->Promise(job.plan, call.world, &job.memory, &job.promised);
  } while (grant.world < call.world && MakeRoom(job.plan, grant, this));
  (*answer)->world_max = grant.world;
  (*answer)->refusal = std::move(grant.refusal);
}

// A resting job has ended here, however long ago. To the home this equals an engine that ended.
// With UNKNOWN_JOB the home would turn away the trainers of its next life.
absl::Status LocalJobs::WhyNotSealed(uint64_t job) const {
  const absl::Status unknown = parts_.self->NoDurableJob(job);
  if (parts_.store == nullptr) return unknown;
  if (const auto damaged = parts_.damaged->Find(job); damaged != nullptr) return damaged->why;
  const absl::StatusOr<JobPlan> plan = parts_.store->Find(job);
  if (!plan.ok() || !plan->resting) return unknown;
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                       absl::StrCat("job \"", plan->spec.name, "\" has ended on server ", self()),
                       {.job = plan->spec.name, .server = self()});
}

void LocalJobs::AdoptEpoch(JobPlan plan, Done done) {
  parts_.strand->Run([this, plan = std::move(plan), done = std::move(done)] {
    if (!Knows(plan.job)) return done(parts_.self->NoDurableJob(plan.job));
    Entry& job = jobs_.at(plan.job);
    job.told = ++told_;
    if (absl::Status st = CheckPlan(plan); !st.ok()) return done(st);
    const std::shared_ptr<RoundEngine> engine = Find(plan.job);
    const MemoryPlan memory = PlanOfEpoch(plan, job, engine->window_extents());
    const bool same_world = plan.epoch.world() == job.plan.epoch.world();
    const uint32_t window = same_world ? engine->window_extents() : memory.window_extents;
    engine->changes().Adopt(
        {.plan = plan,
         .window_extents = window,
         .save =
             [this, plan] {
               const bool forgets = BALLAST_MUTANT(kRecordNotSaved) && parts_.self->IsHome();
               return forgets ? absl::OkStatus() : parts_.store->Save(plan);
             },
         .done = parts_.strand->Bind([this, plan, memory, done](const absl::Status& status) {
           if (status.ok()) OnAdopted(plan, memory);
           done(status);
         })});
  });
}

// Room for this world was kept since the seal. The record is final, even if this server has started
// again since, or its home is an older one, and another job has taken the room.
MemoryPlan LocalJobs::PlanOfEpoch(const JobPlan& plan, const Entry& job,
                                  uint32_t window_extents) const {
  absl::StatusOr<MemoryPlan> memory =
      parts_.memory->PlanIn(plan, parts_.memory->RoomOf(plan, job.memory));
  if (memory.ok()) return *memory;
  BALLAST_LOG(WARN, LogField("run", plan.spec.name)) << memory.status().message();
  memory =
      parts_.memory->PlanIn(plan, {.bytes = UINT64_MAX, .nvme_extents = job.memory.nvme_extents});
  memory->window_extents = window_extents;
  return *memory;
}

void LocalJobs::OnAdopted(const JobPlan& plan, const MemoryPlan& memory) {
  const auto it = jobs_.find(plan.job);
  if (it == jobs_.end() || it->second.plan.epoch.epoch >= plan.epoch.epoch) return;
  it->second.plan = plan;
  parts_.memory->Change(plan, &it->second.memory, memory);
  it->second.promised = {};
}

// --- Growth -------------------------------------------------------------------------------------

void LocalJobs::ExtendJob(JobPlan plan, Done done) {
  parts_.strand->Run(
      [this, plan = std::move(plan), placed = Placed(std::move(done))] { Extend(plan, placed); });
}

void LocalJobs::Extend(const JobPlan& plan, const Done& done) {
  const auto it = jobs_.find(plan.job);
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  const bool durable = IsDurable(plan);
  if (it == jobs_.end() || engine == nullptr || (durable && parts_.store == nullptr)) {
    return done(
        ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                      absl::StrCat("job ", JobIdText(plan.job), " is not known at server ", self()),
                      {.server = self()}));
  }
  if (absl::Status st = ValidateJobSpec(plan.spec, config().limits); !st.ok()) return done(st);
  const GrowthFiles files = durable ? FilesOfGrowth(parts_.store) : GrowthFiles();
  const JobPlan& own = it->second.plan;
  // Sent again by a restarted home: the plan is known, and may already hold room for the next
  // epoch.
  if (plan.layout_version <= own.layout_version) {
    return engine->changes().Extend(
        {plan, engine->window_extents(), files, parts_.strand->Bind(done)});
  }
  // A home that lets the job grow has given up its change of epoch.
  if (plan.epoch.epoch == own.epoch.epoch) {
    parts_.memory->TakeBack(own, &it->second.memory, &it->second.promised);
  }
  const auto planned = [&] {
    return parts_.memory->PlanGrown(plan, it->second.memory, engine->window_extents());
  };
  absl::StatusOr<MemoryPlan> memory = planned();
  // An ended job grows no further.
  if (!it->second.ended && MakeRoom(plan, memory.status(), this)) memory = planned();
  if (!memory.ok()) return done(memory.status());
  const MemoryPlan before = it->second.memory;
  if (!plan.growing) parts_.memory->Change(plan, &it->second.memory, *memory);
  const auto extended = [this, plan, before, done](const absl::Status& status) {
    if (!plan.growing) OnExtended(plan, before, status);
    done(status);
  };
  engine->changes().Extend({plan, memory->window_extents, files, parts_.strand->Bind(extended)});
}

void LocalJobs::OnExtended(const JobPlan& plan, const MemoryPlan& before,
                           const absl::Status& status) {
  const auto it = jobs_.find(plan.job);
  if (it == jobs_.end()) return;
  if (!status.ok()) return parts_.memory->Change(it->second.plan, &it->second.memory, before);
  it->second.plan = plan;
  it->second
      .promised = {};  // The job's memory now fits this plan exactly, room for its epoch included.
}

}  // namespace ballast::server
