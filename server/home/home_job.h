// HomeJob: one job at its home, from the first attach to the job's end, as one transition table.
// Inputs in, effects out; no thread, clock, I/O or hash order, and the time is an input, so the
// same object runs under gRPC and in a simulator.
//
//   ATTACHING -all slots-> MAKING -all servers, record saved-> RUNNING
//   WAKING -all servers-> ADOPTING
//   RUNNING -seats change hands-> SEALING -all servers-> ADOPTING -all servers-> RUNNING
//   ATTACHING -slots disagree-> REFUSED -each slot has heard so-> OVER
//   RUNNING | SEALING | ADOPTING -the job ends at the home-> ENDED
//
// A process attaches to an unknown job: its slots meet in ATTACHING, and the servers make the job
// (MAKING). A job that rests on disk is opened again by the first process that asks (WAKING). Seats
// change hands between two epochs: every server seals the old epoch and says where it stands
// (SEALING, EpochChange), then the home adopts the next record, which makes it final, and the peers
// follow (ADOPTING). An unreachable server is asked again until it answers, also after a restart of
// the home: an epoch is complete only when every server has it. Independently of this the job may
// grow (HomeGrowth). Seating says which process gets which seat.
//
// Comes from: HomeJobs, the driver. Goes to: HomeJobs, as effects.
// Thread safety: thread-compatible; owned by the directory's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/home/attach_barrier.h"
#include "server/home/epoch_change.h"
#include "server/home/home_growth.h"
#include "server/home/home_types.h"
#include "server/home/seating.h"

namespace ballast::server {

class HomeJob {
 public:
  enum class Phase : uint8_t {
    kAttaching,
    kRefused,
    kMaking,
    kWaking,
    kRunning,
    kSealing,
    kAdopting,
    kEnded,
    kOver,  // nothing of it is left: the driver forgets the object
  };

  // `rules` outlives the object, in all three.
  // A new job, as its first attach describes it; that attach is the first input.
  static HomeJob New(const home::Rules* rules, const AttachCall& first);
  // A job that this server has read from its disk. `making`: not every server has made it yet.
  // StartInput tells that the others can be reached.
  static HomeJob Recovered(const home::Rules* rules, const JobPlan& plan, bool making);
  // A job that rests, and is woken: the first input is the attach that asks, then StartInput.
  static HomeJob Woken(const home::Rules* rules, const JobPlan& plan);

  // Takes an input at the time `now`, and appends to `effects` what must be done, in order. An
  // input that the phase does not expect has no effect.
  void Step(std::chrono::nanoseconds now, const home::Input& input, home::Effects* effects);

  Phase phase() const { return phase_; }
  // Before the job is made, only its spec counts.
  const JobPlan& plan() const { return plan_; }
  // Whether all servers have made it.
  bool made() const;
  bool growing() const { return growth_.busy(); }
  // The job was brought back from disk, and some server has not said yet whether it runs the job or
  // has seen its end.
  bool unconfirmed() const { return unconfirmed_; }
  // Whether the call belongs to a new attempt under the name of a refused job: the driver forgets
  // this object first.
  bool StartsAnew(const AttachCall& call) const;

  // A world that comes together, for the first time or again.
  struct Attaching {
    uint32_t world = 0;
    std::vector<uint32_t> missing;  // slots, ascending
  };
  std::optional<Attaching> attaching() const;

 private:
  // One step: the time, and where its effects go.
  struct StepContext {
    template <typename T>
    void Do(T effect) {
      effects->push_back(std::move(effect));
    }
    std::chrono::nanoseconds now;
    home::Effects* effects;
  };
  struct Row {
    std::vector<Phase> phases;
    size_t input;  // index in home::Input
    void (*call)(HomeJob*, const home::Input&, StepContext*);
  };
  template <auto handler>
  static Row On(std::vector<Phase> phases);
  static const std::vector<Row>& Table();

  HomeJob(const home::Rules* rules, Phase phase, JobPlan plan, Seating::Occupancy occupancy);

  void OnStart(const home::StartInput& input, StepContext* step);
  void OnFirstAttach(const home::AttachInput& input, StepContext* step);
  void OnRefusedAttach(const home::AttachInput& input, StepContext* step);
  void OnAttach(const home::AttachInput& input, StepContext* step);
  void OnHangUp(const home::HangUpInput& input, StepContext* step);
  void OnAttachDue(const home::AttachDueInput& input, StepContext* step);
  void OnMade(const home::MadeInput& input, StepContext* step);
  void OnSaved(const home::SavedInput& input, StepContext* step);
  void OnSeatSeen(const home::SeatSeenInput& input, StepContext* step);
  void OnSeatDue(const home::SeatDueInput& input, StepContext* step);
  void OnSeatFree(const home::SeatFreeInput& input, StepContext* step);
  void OnSealed(const home::SealedInput& input, StepContext* step);
  void OnAdopted(const home::AdoptedInput& input, StepContext* step);
  void OnOpened(const home::OpenedInput& input, StepContext* step);
  void OnEpochDue(const home::EpochDueInput& input, StepContext* step);
  void OnExtend(const home::ExtendInput& input, StepContext* step);
  void OnGrown(const home::GrownInput& input, StepContext* step);
  void OnGrowDue(const home::GrowDueInput& input, StepContext* step);
  void OnEnded(const home::EndedInput& input, StepContext* step);
  void OnPeerLost(const home::PeerLostInput& input, StepContext* step);
  void OnFail(const home::FailInput& input, StepContext* step);

  // The world can never be complete: every slot learns `why` once.
  void RefuseWorld(uint32_t slot, const absl::Status& why, StepContext* step);
  // Asks every server to make the job, or to open it again. The home comes first: with its record
  // on disk, a crash cannot leave peers with shares of a job unknown to the home.
  void AskToMake(StepContext* step);
  void MadeEverywhere(const absl::Status& status, StepContext* step);
  void AwakeEverywhere(const absl::Status& status, StepContext* step);
  // Begins the next epoch if its members would be others, or the present one cannot continue.
  void ChangeIfDue(StepContext* step);
  void OnSealFailed(uint32_t server, const absl::Status& status, StepContext* step);
  void WriteRecord(StepContext* step);
  void AskPeersToAdopt(StepContext* step);
  void AdoptedEverywhere(const absl::Status& status, StepContext* step);
  // Answers every process whose seat is settled now. Newcomers that came late start the next
  // change.
  void EndChange(const absl::Status& status, StepContext* step);
  void FailWaiting(const absl::Status& status, StepContext* step);

  const home::Rules* rules_;
  Phase phase_;
  JobPlan plan_;
  std::optional<AttachBarrier> barrier_;  // of a new job
  absl::Status refusal_;                  // kRefused: the answer to each slot
  std::set<uint32_t> told_;               // slots with an answer
  home::Tally tally_;                     // servers that make, wake or adopt
  Seating seating_;
  HomeGrowth growth_;
  std::optional<EpochChange> change_;  // kSealing
  uint32_t changes_ = 0;               // that have begun; the number of the newest
  std::optional<JobPlan> next_;        // kAdopting: the record, until the home has adopted it
  std::set<uint32_t> opened_;          // kAdopting: peers that had to open the job again
  // The epoch was sealed by a change that did not come to its end: the next one must come.
  bool must_change_ = false;
  bool unconfirmed_ = false;
  std::string not_adopted_;  // the newest note that servers do not follow, which is said once
  absl::Status end_;         // why the job has ended at the home; OK: it has not
};

}  // namespace ballast::server
