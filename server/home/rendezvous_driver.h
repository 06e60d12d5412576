// RendezvousDriver drives the rendezvous of the jobs of which this server is the home: it feeds
// each job's RendezvousFsm with calls, epochs and times, and answers the calls.
// Comes from: HomeJobs. Goes to: common/rendezvous, the callers.
// Thread safety: on the directory's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/rendezvous/rendezvous_fsm.h"
#include "server/home/home_table.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/trainer_calls.h"

namespace ballast::server {

class RendezvousDriver {
 public:
  // What home jobs share: both outlive it. `lease`: of every seat.
  struct House {
    const Clock* clock;
    OwnerStrand* strand;
    std::chrono::nanoseconds lease{0};
  };
  // `homes` outlives it, too.
  RendezvousDriver(const House& house, const HomeTable* homes)
      : clock_(house.clock), strand_(house.strand), lease_(house.lease), homes_(homes) {}

  // A call of a trainer. Errors: RendezvousFsm::OnCall's; NOT_FOUND UNKNOWN_JOB.
  void Ask(const RendezvousCall& call, const RendezvousDone& done);
  // The process has said what it does; nothing where it is no member of the job.
  void OnHeard(const DoingReport& report);
  // `job` may have another epoch, or have ended.
  void Follow(const HomeJob& job);
  // The job is no longer here: its calls that wait get `why`.
  void Forget(uint64_t job, const absl::Status& why);
  // All calls that wait get `why`.
  void FailCalls(const absl::Status& why);

 private:
  struct Served {
    rendezvous::RendezvousFsm fsm;
    std::set<std::chrono::nanoseconds> looks;  // when OnDue comes; empty: it does not
  };

  // The job, while it runs.
  const HomeJob* FindRunning(uint64_t job) const;
  rendezvous::RendezvousFsm* FsmOf(const HomeJob& job);
  // Sets a timer for the earliest deadline, at most kLookMax ahead. A timer cannot be cancelled, so
  // an earlier deadline adds a timer, up to kLooksMax per job, however many calls wait. Above that
  // the calls of this job may end late.
  void LookInTime(uint64_t job);
  // The timer for `at` has come.
  void OnDue(uint64_t job, std::chrono::nanoseconds at);
  void Do(uint64_t job, const rendezvous::Effects& effects);

  const Clock* const clock_;
  OwnerStrand* const strand_;
  const std::chrono::nanoseconds lease_;
  const HomeTable* const homes_;
  std::map<uint64_t, Served> served_;  // by number of the job
  std::map<rendezvous::Ticket, RendezvousDone> calls_;
  rendezvous::Ticket next_ticket_ = 1;
};

}  // namespace ballast::server
