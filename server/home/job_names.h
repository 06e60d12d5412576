// JobNames: the names of jobs as their home knows them: attaching, running, resting or damaged.
// Comes from: Directory. Goes to: the calls of operators. Thread safety: owned by the
// directory's strand.
#pragma once

#include "absl/status/statusor.h"
#include "server/home/home_table.h"
#include "server/jobs/damaged_jobs.h"
#include "server/jobs/local_jobs.h"
#include "server/jobs/resting_jobs.h"

namespace ballast::server {

class JobNames {
 public:
  // All outlive the object.
  struct Parts {
    const HomeTable* homes = nullptr;
    const RestingJobs* resting = nullptr;
    const DamagedJobs* damaged = nullptr;
    const LocalJobs* jobs = nullptr;
  };

  explicit JobNames(const Parts& parts) : parts_(parts) {}

  // The plan of a job of which a snapshot can be taken, running or resting. Errors: JOB_BUSY while
  // trainers attach to it, or when it has ended and is not on disk; UNKNOWN_JOB.
  absl::StatusOr<JobPlan> WholeJob(const QualifiedName& name) const;
  // The plan of an existing job, running or not. Errors: JOB_BUSY while trainers attach;
  // UNKNOWN_JOB.
  absl::StatusOr<JobPlan> MadeJob(const QualifiedName& name) const;
  // Whether a job has the name, also one still being made by its trainers.
  bool HasName(const QualifiedName& name) const;

 private:
  const Parts parts_;
};

}  // namespace ballast::server
