// Home: the jobs of this cluster as their home knows them: who attaches, which epoch each is in,
// which of them grow, and which rest. At another server it only asks its home which jobs rest.
// Attach is in job_directory.cc, epochs are in directory_epochs.cc and directory_gathering.cc,
// growth is in directory_growth.cc, ends that a server has missed are in directory_missed_ends.cc,
// and the rest is in home.cc. Comes from: Directory. Goes to: LocalJobs here, the peers. Thread
// safety: owned by the directory's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "server/cluster/desk_parts.h"
#include "server/cluster/epoch_change.h"
#include "server/cluster/gather.h"
#include "server/cluster/job_directory.h"
#include "server/cluster/job_home.h"
#include "server/cluster/snapshot_desk.h"
#include "server/round/job_plan.h"

namespace ballast::server {

using AttachDone = std::function<void(absl::StatusOr<AttachResult>)>;
using ExtendDone = std::function<void(absl::StatusOr<JobPlan>)>;

class Home final : public JobNames, public LocalJobs::Listener {
 public:
  // All outlive the object.
  Home(const DeskParts& parts, const Clock* clock, const SnapshotDesk* snapshots)
      : parts_(parts), clock_(clock), snapshots_(snapshots) {}

  // As JobDirectory's of the same names, with their errors.
  void Attach(const AttachCall& call, const AttachDone& done) { DoAttach(call, done); }
  void AttachCancelled(const std::string& job, uint32_t slot, uint64_t call) {
    DoCancel(job, slot, call);
  }
  void Extend(const ExtendCall& call, const ExtendDone& done) { DoExtend(call, done); }
  void WhichRest(const std::vector<uint64_t>& jobs,
                 const std::function<void(absl::StatusOr<std::vector<uint64_t>>)>& done) const;
  // As LocalJobs::MakeForHome; lets jobs rest that rest at their home before it refuses for lack of
  // room.
  void MakeForHome(const JobPlan& plan, const std::function<void(absl::Status)>& done);

  // The other servers can be reached: what the last life of this server left is due.
  void StartRecovered();
  void PeerLost(uint32_t server, const std::string& why);
  // Every call that waits gets `why`.
  void Stop(const absl::Status& why);

  absl::StatusOr<JobPlan> WholeJob(const std::string& name) const override;
  absl::StatusOr<JobPlan> MadeJob(const std::string& name) const override;
  bool HasName(const std::string& name) const override;
  const std::map<std::string, JobPlan>& resting() const override { return resting_; }
  std::vector<JobStatus> Attaching() const override;
  void AddResting(const JobPlan& plan) override { resting_[plan.spec.name] = plan; }

  void OnJobFound(const JobPlan& plan) override;
  void OnJobEnded(const JobPlan& plan, bool rests, const absl::Status& why) override;
  void OnJobDropped(const JobPlan& plan) override;
  void OnJobForgotten(uint64_t job) override;
  void OnSeatFree(const std::string& name, uint32_t slot, uint64_t incarnation, bool left) override;
  absl::Status NoRoom(const JobPlan& plan, const absl::Status& why) const override;

 private:
  struct Waiting {
    uint64_t call = 0;
    uint64_t incarnation = 0;
    AttachDone done;
    // Of a process that asks for a seat of a job that was made before.
    uint32_t world = 1;
    uint32_t min_world = 1;
    std::chrono::nanoseconds until{0};  // how long it waits for others
  };
  // A job at its home. `created`: all slots attached and all servers made it.
  struct Pending {
    explicit Pending(const AttachCall& first) : home(first) {}
    explicit Pending(const JobPlan& recovered)
        : home(recovered.spec),
          plan(recovered),
          created(true),
          gathers(recovered.spec.variable_world) {}
    JobHome home;
    JobPlan plan;
    bool creating = false;
    bool created = false;
    uint64_t generation = 0;  // of the pending record, so that a late timer hits only its own
    std::map<uint32_t, Waiting> waiting;
    // The world cannot come together: what slots that come later are told, and who knows.
    absl::Status refused;
    std::set<uint32_t> told;
    std::map<uint32_t, ExtendDone> extending;
    bool growing = false;  // all slots have asked, and not every server has the grown plan
    // Durable jobs: processes of a later life whose seat was seen free, and the change of epoch
    // that gives it to them. Those who still wait for their seat are in `waiting` only.
    std::map<uint32_t, uint64_t> newcomers;  // slot -> incarnation
    // Variable worlds: members that have left, or whose lease ran out; they lose their seats.
    std::map<uint32_t, uint64_t> gone;  // slot -> incarnation
    std::optional<EpochChange> change;
    bool sealed = false;  // the epoch was sealed by a change that did not come to its end
    // Variable worlds: of this job nobody was seen yet since this server opened it, so its
    // newcomers are not let in one by one; see Gathering. Until when the first of them waits.
    bool gathers = false;
    std::optional<std::chrono::nanoseconds> gathers_until;
    // Brought back from disk; some server has not said yet that it goes on, and not that it ended.
    bool unconfirmed = false;
    bool rested = false;  // before that: its last trainers have heard its end, or have died
    // Members that attach again while the epoch changes; they learn of the new one.
    std::map<uint32_t, Waiting> survivors;
  };
  // For what outlives a call: keeps the whole directory.
  std::shared_ptr<Home> shared_from_this() { return {parts_.strand->owner().lock(), this}; }
  void Post(std::function<void()> task) { parts_.strand->Post(std::move(task)); }
  std::shared_ptr<RoundEngine> Find(uint64_t job) const { return parts_.jobs->Find(job); }
  const DirectoryConfig& config() const { return parts_.self->config(); }
  void DoAttach(const AttachCall& call, const AttachDone& done);
  // Whether the call was answered from what is known of the job already.
  void TakeSeat(Pending* pending, const AttachCall& call, const AttachDone& done);
  // Whether the call names a resting job, and was answered or will be.
  bool WakeUp(const AttachCall& call, const AttachDone& done);
  void OnAwake(const std::string& name, uint64_t job, const absl::Status& status);
  void AwaitSeat(const std::string& name, uint32_t slot, uint64_t incarnation,
                 std::chrono::nanoseconds give_up);
  void OnSeatSeen(const std::string& name, uint32_t slot, uint64_t incarnation,
                  std::chrono::nanoseconds give_up, const SeatUse& use);
  // A newcomer whose seat is free: lets it in, or the whole world once it has come together.
  // Returns whether it has to go on waiting.
  bool OnNewcomer(Pending* pending, uint32_t slot);
  Gathering GatheringOf(const Pending& pending) const;
  void BeginAgain(Pending* pending, const Gathering& gathering);
  // What is said to a newcomer whose world does not come together.
  void GiveUpGathering(Pending* pending, uint32_t slot, const Gathering& gathering);
  void AwaitNewcomers(const Pending& pending);
  void SomebodyIsThere(Pending* pending);
  // Whether the next epoch would have other members than this one.
  bool WantsChange(const Pending& pending) const;
  void StartChange(Pending* pending);
  // The home's own promise survives: asks the other servers.
  void SealPeers(const JobPlan& plan);
  // Tells those who wait, and goes on with what cannot be taken back any more.
  void OnSealFailed(Pending* pending, uint32_t server, const absl::Status& status);
  void WriteRecord(Pending* pending);
  // Newcomers to new seats that some server has no room for are told so.
  void TurnAway(Pending* pending, uint32_t world_max);
  absl::Status SealError(const JobPlan& plan, uint32_t server, const absl::Status& status) const;
  void OnSealed(const std::string& name, uint32_t epoch, uint32_t server,
                const absl::StatusOr<SealAnswer>& answer);
  void AdoptEverywhere(const std::string& name, const JobPlan& plan);
  void OpenAtPeer(uint32_t server, const JobPlan& plan, const std::shared_ptr<Gather>& gather);
  void OnAdopted(const std::string& name, const JobPlan& plan, const absl::Status& status);
  void EndChange(Pending* pending, const absl::Status& status);
  bool AnswerKnown(const AttachCall& call, const AttachDone& done);
  // Why no new job can have the name of `plan`, which runs or has ended, and what to do.
  static absl::Status NameTaken(const AttachCall& call, const JobPlan& plan, bool ended);
  void Refuse(Pending* pending, const absl::Status& status, uint32_t slot);
  void DoCancel(const std::string& job, uint32_t slot, uint64_t call);
  AttachResult ResultOf(const Pending& pending);
  // Tells whoever holds `slot` of a job that was made; on the job's strand.
  void AnswerSeat(const Pending& pending, uint32_t slot, const AttachDone& done);
  void OnAttachTimeout(const std::string& name, uint64_t generation);
  void CreateEverywhere(Pending* pending);
  void MakeEverywhere(const JobPlan& plan);
  // Here first: peers are told only of what this server, the home, has made or opened itself.
  void CreateAtServers(const JobPlan& plan, const std::shared_ptr<Gather>& gather);
  absl::Status SaveMade(const JobPlan& plan);
  void OnCreated(const std::string& name, uint64_t job, const absl::Status& status);
  absl::Status CheckExtend(const ExtendCall& call, Pending* pending) const;
  void DoExtend(const ExtendCall& call, const ExtendDone& done);
  void ExtendEverywhere(const std::string& name, const JobPlan& plan);
  void OnExtended(const std::string& name, const JobPlan& plan, const absl::Status& status);
  void GrowPeers(const std::string& name);
  void OnPeersGrown(const std::string& name, uint64_t job, const absl::Status& status);
  void EndGrowth(Pending* pending, const absl::Status& status);
  // Asks the home about the jobs here, and lets those rest that rest there: once; again until it
  // answers; or so, when the home has had time to hear what this server has just heard.
  void AskWhichRest(const std::function<void(absl::Status)>& done);
  void AskUntilAnswered();
  void AskSoon();
  void LetRest(const std::vector<uint64_t>& rest, const std::map<uint64_t, uint64_t>& told,
               const std::function<void(absl::Status)>& done);
  void AskAgain(Pending* pending);
  void DropAtPeer(uint32_t server, uint64_t job);
  void FailPending(Pending* pending, const absl::Status& status);
  static bool IsAttaching(const Pending& pending);
  JobStatus AttachingStatus(const std::string& name, const Pending& pending) const;

  const DeskParts parts_;
  const Clock* const clock_;
  const SnapshotDesk* const snapshots_;
  std::map<std::string, Pending> pending_;  // at the home, by name
  bool asks_soon_ = false;                  // the timer of AskSoon runs
  // At the home: durable jobs that ended and are on disk only, by name.
  std::map<std::string, JobPlan> resting_;
  uint64_t next_generation_ = 1;
};

}  // namespace ballast::server
