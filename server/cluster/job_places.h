// JobPlaces: whether a tenant may begin one more of the jobs that a server holds at a time
// (limits.max_jobs), and how a refusal reads.
// Comes from: HomeJobs, which counts. Goes to: server/quota. Thread safety: one strand.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "server/cluster/attach_types.h"
#include "server/cluster/job_directory.h"
#include "server/quota/job_share.h"

namespace ballast::server {

class JobPlaces {
 public:
  // `config` outlives it.
  explicit JobPlaces(const DirectoryConfig* config) : config_(config) {}

  // A tenant whose trainers do not come leaves room for the jobs of others: `pending` of its jobs
  // wait for them. RESOURCE_EXHAUSTED OVER_BUDGET.
  absl::Status CheckPending(const AttachCall& call, size_t pending) const;
  // Whether the job of `call` has a place next to `counts`.
  bool Free(const AttachCall& call, const JobCounts& counts) const;
  // The same; a refusal is RESOURCE_EXHAUSTED OVER_BUDGET. The number that each tenant has goes to
  // the log alone, once a minute: it is the operator's to know, not another tenant's.
  absl::Status Check(const AttachCall& call, const JobCounts& counts) const;

 private:
  JobRoom Room(const AttachCall& call, const JobCounts& counts) const;

  const DirectoryConfig* config_;
};

}  // namespace ballast::server
