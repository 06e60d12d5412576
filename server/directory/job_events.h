// JobEvents: which part of the directory takes part in an event of a job at this server. At the
// home the job's HomeJob does, and RestingJobs; elsewhere the home is asked soon, because the job
// may rest there.
// Comes from: LocalJobs. Goes to: HomeJobs, RestingJobs, OrphanedJobs, RollCall.
// Thread safety: owned by the directory's strand.
#pragma once

#include "absl/status/status.h"
#include "server/directory/orphaned_jobs.h"
#include "server/directory/roll_call.h"
#include "server/home/home_jobs.h"
#include "server/jobs/local_jobs.h"
#include "server/jobs/resting_jobs.h"
#include "server/jobs/this_server.h"

namespace ballast::server {

class JobEvents final : public LocalJobs::Listener {
 public:
  // All outlive the object.
  struct Parts {
    const ThisServer* self = nullptr;
    HomeJobs* homes = nullptr;
    RestingJobs* resting = nullptr;
    OrphanedJobs* orphans = nullptr;
    RollCall* rolls = nullptr;
  };

  explicit JobEvents(const Parts& parts) : parts_(parts) {}

  void OnJobFound(const JobPlan& plan) override;
  void OnJobReopened(const JobPlan& plan) override;
  void OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) override;
  void OnJobDropped(const JobPlan& plan) override { parts_.homes->OnReleased(plan); }
  void OnJobForgotten(uint64_t job) override;
  void OnSeatFree(const QualifiedName& name, uint32_t slot, uint64_t incarnation,
                  bool left) override;
  void OnJobOrdered(const JobPlan& plan) override;
  void FindRoom(const LocalJobs::Done& done) override { parts_.orphans->Ask(done); }
  absl::Status NoRoom(const JobPlan& plan, const absl::Status& why) const override;

 private:
  const Parts parts_;
};

}  // namespace ballast::server
