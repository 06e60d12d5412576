// An attach, counted among those of its tenant that wait until it is answered or given up.
// Comes from: Home. Goes to: Quotas. Thread safety: any thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/home/home_jobs.h"
#include "server/quota/quotas.h"

namespace ballast::server {

// `done`, wrapped to count the call until its last copy is gone. RESOURCE_EXHAUSTED OVER_QUOTA: the
// tenant of the caller has as many as it may; `done` is not called.
absl::StatusOr<AttachDone> CountAttach(const std::shared_ptr<Quotas>& quotas,
                                       const AttachCall& call, const AttachDone& done);

}  // namespace ballast::server
