#include "server/home/job_places.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/home/home_errors.h"

namespace ballast::server {
namespace {

// One tenant's part of limits.max_jobs that may wait for trainers.
constexpr uint32_t kPendingShare = 4;

}  // namespace

absl::Status JobPlaces::CheckPending(const AttachCall& call, size_t pending) const {
  const size_t most = std::max<size_t>(config_->jobs_max / kPendingShare, 1);
  if (!call.caller.secured || pending < most) return absl::OkStatus();
  return home::TooManyPending(call.spec.name, call.caller.tenant(), pending);
}

absl::Status JobPlaces::Check(const AttachCall& call, const JobCounts& counts) const {
  const JobRoom room = Room(call, counts);
  if (room == JobRoom::kFree) return absl::OkStatus();
  if (call.caller.secured) {
    BALLAST_LOG_EVERY(60, WARN, LogField("tenant", call.caller.tenant()))
        << "an attach is refused for want of a place among limits.max_jobs (" << config_->jobs_max
        << "); jobs by tenant: " << CountsText(counts);
  }
  const std::string& name = call.spec.name;
  if (room == JobRoom::kShareFull) {
    return home::ShareOfJobsTaken(name, call.caller.tenant(), config_->jobs_max);
  }
  size_t all = 0;
  for (const auto& [tenant, jobs] : counts) all += jobs;
  return home::TooManyJobs(name, all, config_->jobs_max);
}

JobRoom JobPlaces::Room(const AttachCall& call, const JobCounts& counts) const {
  const std::string tenant = call.caller.tenant();
  const bool numbered = config_->quotas->UseOf(tenant).limits.jobs != kUnlimited;
  return RoomForJob(counts, tenant, config_->jobs_max, call.caller.secured && !numbered);
}

absl::StatusOr<AttachDone> CountAttach(const std::shared_ptr<Quotas>& quotas,
                                       const AttachCall& call, const AttachDone& done) {
  const Holding attach{Holding::Kind::kAttach, quotas->NewNumber()};
  BALLAST_RETURN_IF_ERROR(quotas->Take(attach, call.caller.tenant(), {.waiting_attaches = 1}));
  return AttachDone([done, counted = GiveAtEnd(quotas, attach)](
                        absl::StatusOr<AttachResult> result) { done(std::move(result)); });
}

}  // namespace ballast::server
