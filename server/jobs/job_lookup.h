// JobLookup: a job's engine on this server, by the job's number. LocalShares: this server's share
// of each job, for the driver of jobs at their home.
// Comes from: server/service, HomeJobs. Goes to: LocalJobs.
// Thread safety: every method of JobLookup may be called from any thread; the others of LocalShares
// on the directory's strand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/engine/round_engine.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/trainer_calls.h"
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

// On the strand, the methods of JobShareApi begin at once.
class LocalShares : public JobLookup, public JobShareApi {
 public:
  // Whether the job is here and has not ended.
  virtual bool Runs(uint64_t job) const = 0;
  // Makes the job, or opens it as it rests here; the same plan again changes nothing.
  virtual absl::Status Make(const JobPlan& plan) = 0;
  // The job's record is `plan` from now on.
  virtual absl::Status Save(const JobPlan& plan) = 0;
  // Gives back the memory of the job and lets go of its engine; it may be unknown.
  virtual void Drop(uint64_t job) = 0;
  // Drops ended jobs before their job_ttl is over; null: of all tenants. Returns whether there were
  // any.
  virtual bool DropEnded(const std::string* tenant) = 0;
  // As Drop, and removes the job's files: it could not be made everywhere, or was deleted. Errors
  // are logged; the job still has its name then, and may be forgotten again.
  virtual absl::Status Forget(uint64_t job) = 0;
};

}  // namespace ballast::server
