// Home: this server's role as the home of the cluster's jobs: it answers trainers through HomeJobs,
// knows the names of jobs and which of them rest, and receives their events here. At another server
// it only asks the home which jobs rest (missed_ends.h).
// Comes from: the doors, LocalJobs, the desks. Goes to: HomeJobs, LocalJobs.
// Thread safety: owned by the directory's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/directory/missed_ends.h"
#include "server/directory/roll_call.h"
#include "server/home/home_jobs.h"
#include "server/operator/desk_parts.h"
#include "server/operator/snapshot_desk.h"

namespace ballast::server {

class Home final : public JobNames, public LocalJobs::Listener, private HomeHost {
 public:
  // All outlive the object.
  Home(const DeskParts& parts, const Clock* clock, const SnapshotDesk* snapshots)
      : parts_(parts),
        snapshots_(snapshots),
        missed_ends_(parts),
        roll_call_(parts),
        homes_(parts.self->config(), clock, parts.peers, this,
               parts.metrics == nullptr ? nullptr : parts.metrics->jobs_under_way()) {}

  // As TrainerDoor's and PeerDoor's of the same names, with their errors.
  void Attach(const AttachCall& call, const AttachDone& done);
  void AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call);
  void Extend(const ExtendCall& call, const ExtendDone& done);
  void Rendezvous(const RendezvousCall& call, const RendezvousDone& done);
  void Heard(uint64_t job, const Member& rank, const Doing& doing) {
    homes_.rendezvous()->OnHeard(job, rank, doing);  // Elsewhere than at the home there is no job.
  }
  void WhichRest(const std::vector<uint64_t>& jobs,
                 const std::function<void(absl::StatusOr<std::vector<uint64_t>>)>& done) const;
  void MakeForHome(const JobPlan& plan, const std::function<void(absl::Status)>& done);
  absl::StatusOr<RollAnswer> CompareJobs(const JobRoll& roll) const;

  // The other servers are reachable: unfinished work of this server's last life resumes.
  void StartRecovered();
  void PeerLost(uint32_t server, const std::string& why);
  // Every call that waits gets `why`.
  void Stop(const absl::Status& why) { homes_.FailCalls(why); }

  absl::StatusOr<JobPlan> WholeJob(const QualifiedName& name) const override;
  absl::StatusOr<JobPlan> MadeJob(const QualifiedName& name) const override;
  bool HasName(const QualifiedName& name) const override;
  const std::map<QualifiedName, JobPlan>& resting() const override { return resting_; }
  std::vector<JobStatus> Attaching() const override { return homes_.Attaching(); }
  void AddResting(const JobPlan& plan) override { resting_[plan.name()] = plan; }

  void OnJobFound(const JobPlan& plan) override;
  void OnJobReopened(const JobPlan& plan) override;
  void OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) override;
  void OnJobDropped(const JobPlan& plan) override { homes_.OnReleased(plan); }
  void OnJobForgotten(uint64_t job) override;
  void OnSeatFree(const QualifiedName& name, uint32_t slot, uint64_t incarnation,
                  bool left) override;
  absl::Status NoRoom(const JobPlan& plan, const absl::Status& why) const override;

 private:
  // HomeHost: services for HomeJobs.
  void PostHere(std::function<void()> task) override { parts_.strand->Post(std::move(task)); }
  void PostLater(std::chrono::nanoseconds delay, std::function<void()> task) override {
    parts_.strand->PostAfter(delay, std::move(task));
  }
  std::shared_ptr<void> Keep() override { return parts_.strand->owner().lock(); }
  absl::Status MakeHere(const JobPlan& plan) override {
    return parts_.self->WithPlace(parts_.jobs->Make(plan));
  }
  void SealHere(const SealCall& call,
                std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    parts_.jobs->Seal(call, done);
  }
  void AdoptHere(const JobPlan& plan, std::function<void(absl::Status)> done) override {
    parts_.jobs->Adopt(plan, done);
  }
  void GrowHere(const JobPlan& plan, std::function<void(absl::Status)> done) override {
    parts_.jobs->Extend(plan, [self = parts_.self, done](const absl::Status& status) {
      done(self->WithPlace(status));
    });
  }
  absl::Status SaveHere(const JobPlan& plan) override { return parts_.store->Save(plan); }
  std::shared_ptr<RoundEngine> EngineOf(uint64_t job) override { return parts_.jobs->Find(job); }
  void ReleaseHere(uint64_t job) override { parts_.jobs->Drop(job); }
  void ReleaseEnded() override { parts_.jobs->DropEnded(); }
  void ForgetHere(uint64_t job) override { parts_.jobs->Forget(job).IgnoreError(); }  // Logged.
  const JobPlan* Resting(const QualifiedName& name) const override;
  absl::Status HeldAtRest(const JobPlan& plan) const override {
    return snapshots_->HeldAtRest(plan);
  }
  void RestsNoMore(const QualifiedName& name) override { resting_.erase(name); }

  // Why a job on disk here runs not, though it does not rest.
  absl::Status WhyNotOpen(const QualifiedName& name) const;

  const DeskParts parts_;
  const SnapshotDesk* const snapshots_;
  MissedEnds missed_ends_;
  RollCall roll_call_;
  HomeJobs homes_;  // jobs of which this server is the home, unless they rest
  // At the home: durable jobs that ended and are on disk only.
  std::map<QualifiedName, JobPlan> resting_;
};

}  // namespace ballast::server
