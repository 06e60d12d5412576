// Parts shared by the operators' desks. Each desk carries out some of the operators' calls at the
// home, and this server's share of the same calls when a peer is the home.
// Comes from: Directory. Thread safety: plain pointers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "server/jobs/directory_config.h"
#include "server/jobs/local_jobs.h"
#include "server/jobs/long_work.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/this_server.h"
#include "server/operator/snapshot_files.h"

namespace ballast::server {

// The names of jobs as their home knows them. On the strand.
class JobNames {
 public:
  virtual ~JobNames() = default;
  // The plan of a job of which a snapshot can be taken, running or resting. Errors: JOB_BUSY while
  // trainers attach to it, or when it has ended and is not on disk; UNKNOWN_JOB.
  virtual absl::StatusOr<JobPlan> WholeJob(const QualifiedName& name) const = 0;
  // The plan of an existing job, running or not. Errors: JOB_BUSY while trainers attach;
  // UNKNOWN_JOB.
  virtual absl::StatusOr<JobPlan> MadeJob(const QualifiedName& name) const = 0;
  // Whether a job has the name, also one still being made by its trainers.
  virtual bool HasName(const QualifiedName& name) const = 0;
  // Durable jobs kept on disk only, or ended a moment ago.
  virtual const std::map<QualifiedName, JobPlan>& resting() const = 0;
  // The status of jobs not made yet, or starting again.
  virtual std::vector<JobStatus> Attaching() const = 0;
  // A job was made that rests.
  virtual void AddResting(const JobPlan& plan) = 0;
};

// All outlive the desks.
struct DeskParts {
  const ThisServer* self = nullptr;
  OwnerStrand* strand = nullptr;
  LongWork* work = nullptr;
  LocalJobs* jobs = nullptr;
  DamagedJobs* damaged = nullptr;
  JobNames* names = nullptr;
  SnapshotFiles* files = nullptr;
  JobStore* store = nullptr;  // null on a server that keeps no durable jobs
  PeerLink* peers = nullptr;
  ServerMetrics* metrics = nullptr;  // may be null
};

}  // namespace ballast::server
