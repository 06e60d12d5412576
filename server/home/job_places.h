// JobPlaces: whether a tenant may begin one more of the jobs that a server holds at a time
// (limits.max_jobs), how a refusal reads, and how many there are.
// Comes from: HomeJobs. Goes to: server/quota, the metrics. Thread safety: one strand.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/metrics/registry.h"
#include "server/home/home_job.h"
#include "server/jobs/directory_config.h"
#include "server/jobs/trainer_calls.h"
#include "server/quota/job_share.h"
#include "server/quota/quotas.h"

namespace ballast::server {

class JobPlaces {
 public:
  // `under_way` may be null. Both outlive it.
  JobPlaces(const DirectoryConfig* config, Gauge* under_way) : config_(config), gauge_(under_way) {}

  // A tenant whose trainers do not come leaves room for the jobs of others: `pending` of its jobs
  // wait for them. RESOURCE_EXHAUSTED OVER_BUDGET.
  absl::Status CheckPending(const AttachCall& call, size_t pending) const;
  // The room for the job of `call` next to `counts`.
  JobRoom Room(const AttachCall& call, const JobCounts& counts) const;
  // The same as a status: a refusal is RESOURCE_EXHAUSTED OVER_BUDGET. The number that each tenant
  // has goes to the log alone, once a minute: it is the operator's to know, not another tenant's.
  absl::Status Check(const AttachCall& call, const JobCounts& counts) const;
  // The number of jobs under way (ballast_jobs_under_way) changes by `jobs`.
  void Change(int jobs) {
    under_way_ += jobs;
    if (gauge_ != nullptr && jobs != 0) gauge_->Set(under_way_);
  }

 private:
  const DirectoryConfig* config_;
  Gauge* gauge_;
  int under_way_ = 0;
};

// `done`, wrapped to count the call among those of its tenant that wait, until its last copy is
// gone. RESOURCE_EXHAUSTED OVER_QUOTA: the tenant of the caller has as many as it may; `done` is
// not called.
absl::StatusOr<AttachDone> CountAttach(const std::shared_ptr<Quotas>& quotas,
                                       const AttachCall& call, const AttachDone& done);

// 1 for a job under way, 0 for one that has ended or is over.
inline int UnderWay(const HomeJob& job) {
  const HomeJob::Phase phase = job.phase();
  return phase == HomeJob::Phase::kEnded || phase == HomeJob::Phase::kOver ? 0 : 1;
}

}  // namespace ballast::server
