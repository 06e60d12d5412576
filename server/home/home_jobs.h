// HomeJobs drives the jobs of which this server is the home: it answers trainers, feeds each
// HomeJob, and carries out its effects on this server, on the peers and on the trainers that wait.
// Comes from: Directory; trainers through TrainerApi. Goes to: LocalShares, PeerLink.
// Thread safety: TrainerApi from any thread; all else on the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "server/home/home_table.h"
#include "server/home/home_timers.h"
#include "server/home/job_places.h"
#include "server/home/latest_reports.h"
#include "server/home/rendezvous_driver.h"
#include "server/jobs/damaged_jobs.h"
#include "server/jobs/job_lookup.h"
#include "server/jobs/owner_strand.h"
#include "server/jobs/peer_calls.h"
#include "server/jobs/resting_jobs.h"
#include "server/jobs/this_server.h"
#include "server/jobs/trainer_calls.h"

namespace ballast::server {

class HomeJobs final : public TrainerApi {
 public:
  // All outlive the object.
  struct Parts {
    const ThisServer* self = nullptr;
    OwnerStrand* strand = nullptr;
    const Clock* clock = nullptr;
    LocalShares* shares = nullptr;
    RestingJobs* resting = nullptr;
    const DamagedJobs* damaged = nullptr;
    PeerLink* peers = nullptr;
    Gauge* under_way = nullptr;  // how many jobs have not ended; may be null
  };

  explicit HomeJobs(const Parts& parts);

  void Attach(AttachCall call, AttachDone done) override;
  void AttachCancelled(const QualifiedName& job, uint32_t slot, uint64_t call) override;
  void Extend(ExtendCall call, ExtendDone done) override;
  void Rendezvous(RendezvousCall call, RendezvousDone done) override;
  void Heard(DoingReport report) override;

  // --- On the strand
  const HomeTable& table() const { return homes_; }

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

 private:
  // Whether the caller may start a new job, after ended ones are removed. Waking a job is always
  // allowed: its trainers continue with their state.
  absl::Status CheckPlaces(const AttachCall& call);

  using Life = home::Life;
  using Feeder = std::function<void(home::Input)>;

  // Attach, at the home, of a valid job.
  void Seat(const AttachCall& call, const AttachDone& done);
  Life Add(HomeJob job);
  // Lets go of a job that is not under way any more.
  void Remove(const QualifiedName& name);
  void Wake(JobPlan plan, const AttachCall& call, const AttachDone& done);
  home::AttachInput Ask(const AttachCall& call, const AttachDone& done);
  void Feed(const Life& to, const home::Input& input);
  // The present job of that name, if there is one.
  void FeedPresent(const QualifiedName& name, const home::Input& input);
  void FeedAll(const home::Input& input);
  // A callback that posts its argument to the strand. Any thread.
  Feeder Later(const Life& to);
  // A server has made a job, or has failed to. `fresh`: the number of a new job, else 0. An
  // abandoned new job is dropped there.
  void OnMade(const Life& to, uint32_t server, uint64_t fresh, const absl::Status& status);

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

  const Parts parts_;
  const DirectoryConfig& config_;
  const home::Rules rules_;
  HomeTable homes_;
  LatestReports reports_;
  RendezvousDriver rendezvous_{{parts_.clock, parts_.strand, rules_.lease}, &homes_};
  HomeTimers timers_{parts_.clock, parts_.strand, [this](const Life& to, const home::Due& due) {
                       std::visit([&](const auto& input) { Feed(to, input); }, due);
                     }};
  JobPlaces places_;
  home::Ticket next_ticket_ = 1;
  std::map<home::Ticket, AttachDone> attaches_;
  std::map<home::Ticket, ExtendDone> extends_;
  // Jobs that were not woken, until their engines have ended here: the calls since then.
  std::map<QualifiedName, std::vector<std::pair<AttachCall, AttachDone>>> released_;
};

}  // namespace ballast::server
