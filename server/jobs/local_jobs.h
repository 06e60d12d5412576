// LocalJobs: the share of this server in every job: its plan, memory, engine and files. A job is
// made, opened, sealed, moved to its next epoch, grown, ended and dropped here.
// Comes from: the home, here or at a peer, and the engines. Goes to: RoundEngine, JobStore,
// MemoryBook. local_jobs.cc has how a job comes and goes, local_changes.cc how it is opened after a
// start, and how it changes.
// Thread safety: owned by the directory's strand; Find and Engines may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "server/engine/round_engine.h"
#include "server/jobs/background_tasks.h"
#include "server/jobs/damaged_jobs.h"
#include "server/jobs/job_lookup.h"
#include "server/jobs/job_store.h"
#include "server/jobs/memory_book.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/resting_job_files.h"
#include "server/jobs/this_server.h"

namespace ballast::server {

class LocalJobs final : public LocalShares {
 public:
  using Done = std::function<void(absl::Status)>;
  struct Entry {
    JobPlan plan;
    MemoryPlan memory;
    MemoryBook::Promised promised;  // while it is sealed; part of `memory`
    bool ended = false;
    uint64_t told = 0;  // differs after each word of the home that the job runs
  };
  // Events of jobs at this server. Called on the strand.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Recover has found a job on disk; `plan` is its record. It is open unless it rests. Not called
    // for one that should be open and could not be.
    virtual void OnJobFound(const JobPlan& plan) = 0;
    // Retry has opened such a job.
    virtual void OnJobReopened(const JobPlan& plan) = 0;
    // The job has ended, for the reason `why`. `rests`: its record says so from now on.
    virtual void OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) = 0;
    // Its memory was given back, and its engine is gone.
    virtual void OnJobDropped(const JobPlan& plan) = 0;
    // Nothing of it is on disk any more.
    virtual void OnJobForgotten(uint64_t job) = 0;
    // RoundEngine::OnSeatFree of the job of that name.
    virtual void OnSeatFree(const QualifiedName& name, uint32_t slot, uint64_t incarnation,
                            bool left) = 0;
    // The home orders this server to make the job.
    virtual void OnJobOrdered(const JobPlan& plan) = 0;
    // A job that the home orders has no room here. Lets jobs rest that rest at the home; an error
    // when it is not known which do.
    virtual void FindRoom(const Done& done) = 0;
    // The error for a job without room next to the others; `why` is MemoryBook::Plan's.
    virtual absl::Status NoRoom(const JobPlan& plan, const absl::Status& why) const = 0;
  };
  // All outlive the object. `store` is null on a server that keeps no durable jobs.
  struct Parts {
    const ThisServer* self = nullptr;
    OwnerStrand* strand = nullptr;
    MemoryBook* memory = nullptr;
    BackgroundTasks* work = nullptr;
    RestingJobFiles* holds = nullptr;
    DamagedJobs* damaged = nullptr;
    JobStore* store = nullptr;
    Listener* listener = nullptr;
  };

  LocalJobs(const Parts& parts, const EngineDeps& deps) : parts_(parts), deps_(deps) {}

  std::shared_ptr<RoundEngine> Find(uint64_t job) const override;
  absl::Status WhyNot(uint64_t job, const Caller& caller) const override {
    return parts_.damaged->WhyNot(job, caller);
  }
  std::vector<std::shared_ptr<RoundEngine>> Engines() const;
  // Null: there is no such job. Valid until the job is dropped.
  const Entry* Get(uint64_t job) const;
  bool Runs(uint64_t job) const override;
  const std::map<uint64_t, Entry>& all() const { return jobs_; }

  // Opens every job on disk except resting ones; blocks for as long as reading takes. Called once,
  // before anything else. Jobs that do not fit the budget are opened over it, with one warning. One
  // that cannot be opened is damaged, and no error. Errors: those of the metadata store, DATA_LOSS
  // STATE_LOST among them; RESOURCE_EXHAUSTED when the machine has too little for the jobs.
  absl::Status Recover();
  // Starts the engines of these jobs; peers can reach this server now. Any thread.
  void StartRecovered();

  // As JobsApi::RetryJob.
  absl::StatusOr<bool> Retry(const QualifiedName& name);

  // Errors: NAME_IN_USE for another plan of this job; Listener::NoRoom; DATA_LOSS STATE_LOST;
  // BAD_SPEC; SERVER_REMOVED and UNSUPPORTED, ThisServer::CheckServers'; UNAVAILABLE RECOVERING
  // while a snapshot holds its files.
  absl::Status Make(const JobPlan& plan) override;
  absl::Status Save(const JobPlan& plan) override { return parts_.store->Save(plan); }
  // As Make, for an order of the home, which knows no other job of this name. An existing job of
  // this name is removed if its creation was interrupted, and else STATE_LOST. NAME_IN_USE: it
  // comes from a later attempt of the home, which has given up that of `plan`; nothing is changed.
  void CreateJob(JobPlan plan, Done done) override;
  void DropJob(uint64_t job, Done done) override;

  // Epoch change and growth; see RoundEngine. Errors: NOT_FOUND UNKNOWN_JOB; JOB_FINISHED of a job
  // that rests here; those of the engine.
  void Seal(SealCall call, std::function<void(absl::StatusOr<SealAnswer>)> done) override;
  void AdoptEpoch(JobPlan plan, Done done) override;
  void ExtendJob(JobPlan plan, Done done) override;

  // `done`, which gets ThisServer::WithPlace of its status.
  Done Placed(Done done) const;
  // Runs `done` on the strand with the status of the job's engine.
  void Ask(const std::shared_ptr<RoundEngine>& engine,
           const std::function<void(const JobStatus&)>& done);

  void Drop(uint64_t job) override;
  bool DropEnded(const std::string* tenant) override;
  // Errors: JobStore::Remove's.
  absl::Status Forget(uint64_t job) override;
  // Lets go of the engines, as Directory::Abandon.
  void Abandon();

 private:
  // CreateJob, on the strand, in the room that is here.
  void MakeForHome(const JobPlan& plan, const Done& done);
  // ExtendJob, on the strand.
  void Extend(const JobPlan& plan, const Done& done);
  absl::Status RecoverOne(JobPlan plan);
  // JobStore::Open, as a phase of recovery.
  absl::StatusOr<std::unique_ptr<JobStorage>> OpenStorage(const JobPlan& plan) const;
  // Opens a job with its files in the memory that it has since MemoryBook::Begin, without starting
  // its engine. Errors: that of `held`; those of RoundEngine::Create, and then it has none.
  absl::Status Open(const JobPlan& plan, const absl::StatusOr<MemoryPlan>& held,
                    std::unique_ptr<JobStorage> storage);
  absl::Status CheckSame(const JobPlan& plan, Entry* known);
  absl::Status CheckRoom(const JobPlan& plan);
  absl::Status MakeNew(const JobPlan& plan);
  absl::StatusOr<std::unique_ptr<JobStorage>> MakeStorage(const JobPlan& plan);
  absl::Status Reopen(const JobPlan& plan);
  // Makes `plan`, whose name `other`, which the home does not know, has here.
  absl::Status MakeInPlaceOf(const JobPlan& other, bool progress, const JobPlan& plan);
  absl::StatusOr<std::shared_ptr<RoundEngine>> MakeEngine(const JobPlan& plan,
                                                          const MemoryPlan& memory,
                                                          std::unique_ptr<JobStorage> storage);
  // Removes the metric series of that name, unless another job here has it.
  void ForgetMetrics(const QualifiedName& name);
  void OnEnded(uint64_t job, const absl::Status& why, uint64_t round);
  void DropLater(uint64_t job);
  absl::Status WhyNotSealed(uint64_t job) const;
  void OnSealed(const SealCall& call, absl::StatusOr<SealAnswer>* answer);
  // Room for a job in its next epoch, whatever the budget says.
  MemoryPlan PlanOfEpoch(const JobPlan& plan, const Entry& job, uint32_t window_extents) const;
  void OnAdopted(const JobPlan& plan, const MemoryPlan& memory);
  // The engine has the layout of `plan`, or not; the job had `before`.
  void OnExtended(const JobPlan& plan, const MemoryPlan& before, const absl::Status& status);
  bool Knows(uint64_t job) const;
  const DirectoryConfig& config() const { return parts_.self->config(); }
  int self() const { return static_cast<int>(parts_.self->id()); }

  const Parts parts_;
  const EngineDeps deps_;
  std::map<uint64_t, Entry> jobs_;
  uint64_t told_ = 0;  // newest Entry::told

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<RoundEngine>> engines_ ABSL_GUARDED_BY(mu_);
};

// The error for trainers of a job that an operator has deleted.
absl::Status JobDeleted(const JobPlan& plan);

}  // namespace ballast::server
