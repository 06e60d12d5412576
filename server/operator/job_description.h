// The operators' view of a durable job.
// Comes from: the home's plans. Goes to: the Admin service. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "server/jobs/job_store.h"
#include "server/operator/operator_calls.h"

namespace ballast::server {

// All elements of all tensors.
uint64_t ParametersOf(const JobSpec& spec);

// `state`: running | resting | damaged | unopened. `store` gives the bytes on disk, of all servers
// of the job; null: it has none.
DurableJob Describe(const JobPlan& plan, const std::string& state, const JobStore* store);

}  // namespace ballast::server
