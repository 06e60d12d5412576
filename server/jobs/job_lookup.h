// JobLookup: a job's engine on this server, by the job's number.
// Comes from: server/service. Goes to: LocalJobs. Thread safety: every method may be called from
// any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/engine/round_engine.h"
#include "server/jobs/attach_types.h"
#include "server/round/no_job.h"

namespace ballast::server {

class JobLookup {
 public:
  virtual ~JobLookup() = default;
  // Engine of a job, or null. Does not wait for the strand.
  virtual std::shared_ptr<RoundEngine> Find(uint64_t job) const = 0;
  // The error for a trainer that asks for a job without an engine: NOT_FOUND UNKNOWN_JOB, or why
  // the job could not be opened here, if it is of the caller's tenant. Does not wait either.
  virtual absl::Status WhyNot(uint64_t job, const Caller& caller) const {
    (void)caller;
    return NoJobHere(job);
  }
};

}  // namespace ballast::server
