// Parts of the directory that most others use.
// Comes from: Directory. Goes to: the parts that answer operators, OrphanedJobs, RollCall.
// Thread safety: plain pointers.
#pragma once

#include "common/metrics/metrics.h"
#include "server/home/home_table.h"
#include "server/home/job_names.h"
#include "server/jobs/background_tasks.h"
#include "server/jobs/local_jobs.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/resting_jobs.h"
#include "server/jobs/this_server.h"
#include "server/operator/snapshot_files.h"

namespace ballast::server {

// All outlive the parts that get them.
struct DirectoryParts {
  const ThisServer* self = nullptr;
  OwnerStrand* strand = nullptr;
  BackgroundTasks* work = nullptr;
  LocalJobs* jobs = nullptr;
  DamagedJobs* damaged = nullptr;
  const HomeTable* homes = nullptr;
  RestingJobs* resting = nullptr;
  const JobNames* names = nullptr;
  SnapshotFiles* files = nullptr;
  JobStore* store = nullptr;  // null on a server that keeps no durable jobs
  PeerLink* peers = nullptr;
  ServerMetrics* metrics = nullptr;  // may be null
};

}  // namespace ballast::server
