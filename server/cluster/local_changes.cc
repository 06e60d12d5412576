// LocalJobs: how a job changes at this server: its epoch, its world and its layout. See
// local_jobs.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/names.h"
#include "common/base/reason.h"
#include "server/cluster/local_jobs.h"

namespace ballast::server {
namespace {

// Drops jobs that have ended, where their room may be what the plan lacks: those of its tenant, if
// that is at its quota. Whether there were any.
bool MakeRoom(const JobPlan& plan, const absl::Status& lacks, LocalJobs* jobs) {
  if (ReasonOf(lacks) == Reason::kOverQuota) return jobs->DropEnded(&plan.tenant);
  return ReasonOf(lacks) == Reason::kOverBudget && jobs->DropEnded();
}

// As above, for a seal that granted less than was wanted. Without a refusal memory was short.
bool MakeRoom(const JobPlan& plan, const MemoryBook::Grant& less, LocalJobs* jobs) {
  return less.refusal.ok() ? jobs->DropEnded() : MakeRoom(plan, less.refusal, jobs);
}

}  // namespace

bool LocalJobs::Knows(uint64_t job) const {
  return Find(job) != nullptr && parts_.store != nullptr && Get(job) != nullptr;
}

// --- Epochs -------------------------------------------------------------------------------------

// The promise must outlive this process before another server builds on it. It is saved on the
// engine's strand, as Adopt's record is: a seal that is repeated late must not undo the next epoch.
void LocalJobs::Seal(const SealCall& call,
                     const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  if (!Knows(call.job)) return done(WhyNotSealed(call.job));
  jobs_.at(call.job).told = ++told_;
  const auto save = [store = parts_.store](const JobPlan& sealed) { return store->Save(sealed); };
  const auto answer = [this, call, done](absl::StatusOr<SealAnswer> sealed) {
    OnSealed(call, &sealed);
    done(sealed);
  };
  Find(call.job)->Seal(call.epoch, save, parts_.strand->Bind(answer));
}

// Room for the next epoch is the job's own from now on: other jobs may be sealed meanwhile.
void LocalJobs::OnSealed(const SealCall& call, absl::StatusOr<SealAnswer>* answer) {
  const auto it = jobs_.find(call.job);
  if (!answer->ok() || it == jobs_.end() || it->second.ended) return;
  Job& job = it->second;
  if (job.plan.epoch.epoch != call.epoch) return;
  job.plan.sealed_epoch = call.epoch;
  MemoryBook::Grant grant;
  do {
    grant = parts_.memory->Promise(job.plan, call.world, &job.memory, &job.promised);
  } while (grant.world < call.world && MakeRoom(job.plan, grant, this));
  (*answer)->world_max = grant.world;
  (*answer)->refusal = std::move(grant.refusal);
}

// A job that rests here has ended here, however long ago that was. To the home that is the same as
// an engine that has ended. With UNKNOWN_JOB the home would turn away the trainers of its next
// life.
absl::Status LocalJobs::WhyNotSealed(uint64_t job) const {
  const absl::Status unknown = parts_.self->NoDurableJob(job);
  if (parts_.store == nullptr) return unknown;
  const absl::StatusOr<JobPlan> plan = parts_.store->Find(job);
  if (!plan.ok() || !plan->resting) return unknown;
  return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                       absl::StrCat("job \"", plan->spec.name, "\" has ended on server ", self()),
                       {.job = plan->spec.name, .server = self()});
}

void LocalJobs::Adopt(const JobPlan& plan, const Done& done) {
  if (!Knows(plan.job)) return done(parts_.self->NoDurableJob(plan.job));
  Job& job = jobs_.at(plan.job);
  job.told = ++told_;
  if (absl::Status st = CheckPlan(plan); !st.ok()) return done(st);
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  const MemoryPlan memory = PlanOfEpoch(plan, job, engine->window_extents());
  const bool same_world = plan.epoch.world() == job.plan.epoch.world();
  const uint32_t window = same_world ? engine->window_extents() : memory.window_extents;
  const auto save = [store = parts_.store, plan] { return store->Save(plan); };
  engine->Adopt(plan, window, save,
                parts_.strand->Bind([this, plan, memory, done](const absl::Status& status) {
                  if (status.ok()) OnAdopted(plan, memory);
                  done(status);
                }));
}

// Room for this world was kept since the seal. The record is final, even if this server has started
// again since, or its home is an older one, and another job has taken the room.
MemoryPlan LocalJobs::PlanOfEpoch(const JobPlan& plan, const Job& job,
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

void LocalJobs::Extend(const JobPlan& plan, const Done& done) {
  const auto it = jobs_.find(plan.job);
  const std::shared_ptr<RoundEngine> engine = Find(plan.job);
  const bool durable = plan.spec.durability != Durability::kNone;
  if (it == jobs_.end() || engine == nullptr || (durable && parts_.store == nullptr)) {
    return done(
        ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                      absl::StrCat("job ", JobIdText(plan.job), " is not known at server ", self()),
                      {.server = self()}));
  }
  if (absl::Status st = ValidateJobSpec(plan.spec, config().limits); !st.ok()) return done(st);
  const GrowthFiles files = durable ? FilesOfGrowth() : GrowthFiles();
  const JobPlan& own = it->second.plan;
  // Sent again by a home that has started again: entered here, as may be the next epoch's room.
  if (plan.layout_version <= own.layout_version) {
    return engine->Extend(plan, engine->window_extents(), files, parts_.strand->Bind(done));
  }
  // A home that lets the job grow has given up its change of epoch.
  if (plan.epoch.epoch == own.epoch.epoch) {
    parts_.memory->TakeBack(own, &it->second.memory, &it->second.promised);
  }
  const auto planned = [&] {
    return parts_.memory->PlanGrown(plan, it->second.memory, engine->window_extents());
  };
  absl::StatusOr<MemoryPlan> memory = planned();
  // A job that has ended itself grows no further.
  if (!it->second.ended && MakeRoom(plan, memory.status(), this)) memory = planned();
  if (!memory.ok()) return done(memory.status());
  const MemoryPlan before = it->second.memory;
  if (!plan.growing) parts_.memory->Change(plan, &it->second.memory, *memory);
  const auto extended = [this, plan, before, done](const absl::Status& status) {
    if (!plan.growing) OnExtended(plan, before, status);
    done(status);
  };
  engine->Extend(plan, memory->window_extents, files, parts_.strand->Bind(extended));
}

void LocalJobs::OnExtended(const JobPlan& plan, const MemoryPlan& before,
                           const absl::Status& status) {
  const auto it = jobs_.find(plan.job);
  if (it == jobs_.end()) return;
  if (!status.ok()) return parts_.memory->Change(it->second.plan, &it->second.memory, before);
  it->second.plan = plan;
  it->second
      .promised = {};  // What the job has is what this plan needs, that of its epoch included.
}

GrowthFiles LocalJobs::FilesOfGrowth() const {
  JobStore* const store = parts_.store;
  return {.make = [store](const JobPlan& grown) { return store->Grow(grown); },
          .save = [store](const JobPlan& grown) { return store->Save(grown); },
          .drop_old = [store](const JobPlan& grown) { store->DropOutgrown(grown); }};
}

}  // namespace ballast::server
