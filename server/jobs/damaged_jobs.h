// DamagedJobs: durable jobs on this server's disk that it could not open, and why: their files are
// missing, damaged or not to be read, or the cluster is not one that they can run in. Their files
// and records stay as they are. All other jobs of the server run. So are jobs of which it has
// nothing at all and should have, as another server says: its data directory is not mounted.
// Comes from: LocalJobs. Goes to: the home, the streams of trainers, operators, one metric.
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/metrics/metrics.h"
#include "common/text/qualified_name.h"
#include "server/engine/round_engine.h"
#include "server/jobs/job_store.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/this_server.h"

namespace ballast::server {

class DamagedJobs {
 public:
  struct Entry {
    JobPlan plan;
    absl::Status why;      // typed; the text names the file and the next step
    bool lacking = false;  // nothing of it is here; `plan` has its number, name and servers only

    // As JobStatus::state and DurableJob::state.
    const char* state() const;
  };
  using Ref = std::shared_ptr<const Entry>;

  // All outlive the object; `metrics` may be null, and `store` where no job is durable.
  DamagedJobs(const ThisServer* self, const JobStore* store, ServerMetrics* metrics)
      : self_(self), store_(store), metrics_(metrics) {}

  // If `status` blames the data on disk: logs it, marks the job as damaged and returns DATA_LOSS
  // STATE_LOST with the place and the next step. Returns any other status unchanged.
  absl::Status Note(const JobPlan& plan, const absl::Status& status);
  // The job could not be opened for the reason `why`; replaces an earlier reason.
  void Add(const JobPlan& plan, const absl::Status& why);
  // This server should have files of the job, as server `other` knows, and has none. Returns
  // DATA_LOSS STATE_LOST with the next step.
  absl::Status Lacks(const RolledJob& job, uint32_t other);
  // It may be missing.
  void Remove(uint64_t job);
  // As Remove, unless files of it are here.
  void RemoveLacking(uint64_t job);

  // Null: nothing is known to be wrong with it.
  Ref Find(uint64_t job) const;
  Ref Find(const QualifiedName& name) const;
  // Why the job of that name, which is on disk here and does not rest, could not be opened. OK for
  // every other name: a job that rests is opened when trainers wake it.
  absl::Status CheckOpen(const QualifiedName& name) const {
    const Ref damaged = Find(name);
    return damaged == nullptr || damaged->plan.resting ? absl::OkStatus() : damaged->why;
  }
  // The error for a trainer that asks for a job without an engine: as JobLookup::WhyNot. For a
  // lacking job NOT_FOUND UNKNOWN_JOB: trainers wait, as a disk may be mounted yet.
  absl::Status WhyNot(uint64_t job, const Caller& caller) const;
  // Ascending id.
  std::vector<Ref> All() const;

 private:
  // Logs `why` unless it was logged for the job already.
  void Put(uint64_t number, Entry job);
  void Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ThisServer* const self_;
  const JobStore* const store_;
  ServerMetrics* const metrics_;
  mutable Mutex mu_;
  std::map<uint64_t, Ref> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
