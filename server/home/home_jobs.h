// HomeJobs drives the jobs of which this server is the home: it feeds each HomeJob, and carries out
// its effects on this server, on the peers and on the trainers that wait.
// Comes from: Directory. Goes to: HomeHost (this server), PeerLink, the callers of attach.
// Thread safety: on the directory's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "server/home/home_job.h"
#include "server/home/home_timers.h"
#include "server/home/job_places.h"
#include "server/home/rendezvous_desk.h"
#include "server/jobs/directory_config.h"
#include "server/jobs/peer_calls.h"

namespace ballast::server {

using AttachDone = std::function<void(absl::StatusOr<AttachResult>)>;
using ExtendDone = std::function<void(absl::StatusOr<JobPlan>)>;

// The server that the home's jobs live on: its strand, and its own share of each job.
class HomeHost {
 public:
  virtual ~HomeHost() = default;

  // Runs a task on the strand, now or later, and keeps the host alive until then.
  virtual void PostHere(std::function<void()> task) = 0;
  virtual void PostLater(std::chrono::nanoseconds delay, std::function<void()> task) = 0;
  // As long as a copy of it lives, the host does.
  virtual std::shared_ptr<void> Keep() = 0;

  // This server's share of a job. `done` may run at once, or on the strand.
  virtual absl::Status MakeHere(const JobPlan& plan) = 0;
  virtual void SealHere(const SealCall& call,
                        std::function<void(absl::StatusOr<SealAnswer>)> done) = 0;
  virtual void AdoptHere(const JobPlan& plan, std::function<void(absl::Status)> done) = 0;
  virtual void GrowHere(const JobPlan& plan, std::function<void(absl::Status)> done) = 0;
  virtual absl::Status SaveHere(const JobPlan& plan) = 0;
  // The job's engine, or null.
  virtual std::shared_ptr<RoundEngine> EngineOf(uint64_t job) = 0;
  // Gives back the memory of a job, and of all ended ones; calls HomeJobs::OnReleased.
  virtual void ReleaseHere(uint64_t job) = 0;
  virtual void ReleaseEnded() = 0;
  // As ReleaseHere, and removes its files.
  virtual void ForgetHere(uint64_t job) = 0;

  // The plan of a job kept on disk only, or null.
  virtual const JobPlan* Resting(const QualifiedName& name) const = 0;
  // Why that job cannot be woken now.
  virtual absl::Status HeldAtRest(const JobPlan& plan) const = 0;
  virtual void RestsNoMore(const QualifiedName& name) = 0;
};

class HomeJobs {
 public:
  // `under_way`: how many have not ended; may be null. It and the other pointers outlive it.
  HomeJobs(const DirectoryConfig& config, const Clock* clock, PeerLink* peers, HomeHost* host,
           Gauge* under_way);

  // Calls of trainers; this server is the home, and the spec of `call` is valid. See JobDirectory.
  void Attach(const AttachCall& call, const AttachDone& done);
  void HangUp(const QualifiedName& job, uint32_t slot, uint64_t call);
  void Extend(const ExtendCall& call, const ExtendDone& done);
  // The rendezvous of the jobs here; it follows their epochs.
  RendezvousDesk* rendezvous() { return &rendezvous_; }

  // A job was read from this server's disk; see HomeJob::Recovered.
  void Recover(const JobPlan& plan, bool making);
  // The peers can be reached; of one job, that was recovered later.
  void Start();
  void Start(const QualifiedName& name);

  // Events of a job at this server.
  void OnSeatFree(const QualifiedName& name, const home::SeatFreeInput& input);
  void OnEnded(const JobPlan& plan, const home::EndedInput& input);
  // Nothing of the job is in memory any more.
  void OnReleased(const JobPlan& plan);

  void OnPeerLost(uint32_t server, const std::string& why);
  // Every call that waits gets `status`.
  void FailCalls(const absl::Status& status);

  // The job of that name, or null.
  const HomeJob* Find(const QualifiedName& name) const;
  // A job of which some peer may still say that it has ended, or null; with `tenant` one of its.
  const HomeJob* FindUnconfirmed(const std::string* tenant = nullptr) const;
  // Jobs whose world comes together.
  std::vector<JobStatus> Attaching() const;

 private:
  // Whether the caller may start a new job, after ended ones are removed. Waking a job is always
  // allowed: its trainers continue with their state.
  absl::Status CheckPlaces(const AttachCall& call);

  struct Home {
    uint64_t life = 0;
    HomeJob job;
  };
  using Life = home::Life;
  using Feeder = std::function<void(home::Input)>;

  // Null if that job is gone.
  const HomeJob* At(const Life& to) const;
  Life Add(HomeJob job);
  void Wake(JobPlan plan, const AttachCall& call, const AttachDone& done);
  home::AttachInput Ask(const AttachCall& call, const AttachDone& done);
  void Feed(const Life& to, const home::Input& input);
  void FeedAll(const home::Input& input);
  // A callback that posts its argument to the strand. Any thread.
  Feeder Later(const Life& to);
  // A server has made a job, or has failed to. An abandoned job is dropped there.
  void OnMade(const Life& to, uint32_t server, const JobPlan& plan, const absl::Status& status);
  void DropAtPeer(uint32_t server, uint64_t job);

  void Do(const Life& to, const home::RefuseAttach& effect);
  void Do(const Life& to, const home::DropCall& effect);
  void Do(const Life& to, const home::GiveSeat& effect);
  void Do(const Life& to, const home::AnswerExtend& effect);
  void Do(const Life& to, const home::MakeAt& effect);
  void Do(const Life& to, const home::SaveRecord& effect);
  void Do(const Life& to, const home::ExpectSlots& effect);
  void Do(const Life& to, const home::DropAt& effect);
  void Do(const Life& to, const home::Forget& effect);
  void Do(const Life& to, const home::Release& effect);
  void Do(const Life& to, const home::WakeRecord& effect);
  void Do(const Life& to, const home::SealAt& effect);
  void Do(const Life& to, const home::AdoptAt& effect);
  void Do(const Life& to, const home::OpenAt& effect);
  void Do(const Life& to, const home::GrowAt& effect);
  void Do(const Life& to, const home::SlotGrows& effect);
  void Do(const Life& to, const home::LookAtSeat& effect);
  void Do(const Life& to, const home::FailJob& effect);
  void Do(const Life& to, const home::Arm& effect);
  void Do(const Life& to, const home::Note& effect);

  const DirectoryConfig& config_;
  const home::Rules rules_;
  const Clock* const clock_;
  PeerLink* const peers_;
  HomeHost* const host_;
  std::map<QualifiedName, Home> homes_;
  RendezvousDesk rendezvous_{{clock_, host_, rules_.lease}, [this](uint64_t job) -> const HomeJob* {
                               for (const auto& [name, home] : homes_) {
                                 if (home.job.plan().job == job) return &home.job;
                               }
                               return nullptr;
                             }};
  HomeTimers timers_{clock_, host_, [this](const Life& to, const home::Due& due) {
                       std::visit([&](const auto& input) { Feed(to, input); }, due);
                     }};
  JobPlaces places_;
  uint64_t next_life_ = 1;
  home::Ticket next_ticket_ = 1;
  std::map<home::Ticket, AttachDone> attaches_;
  std::map<home::Ticket, ExtendDone> extends_;
};

}  // namespace ballast::server
