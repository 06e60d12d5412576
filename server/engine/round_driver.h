// RoundDriver: the engine of one job at one server. It feeds the RoundFsm and carries out its
// effects, and so decides the order of all actions; each of its parts owns the state of one task:
//
//   TrainerSessions streams, seats, leases; state for one trainer (StateSender)
//   PlanChanges     epochs and growth (GrownFiles)
//   StateCaptures   the state of a round for a snapshot
//   SlotSinks       open streams, messages to trainers
//   FrameAdmission  a frame, from admission to its register
//   InitialWeights  the job's initial weights
//   Reducer         sums of complete extents
//   Sweep           the step over the extents
//   Waiters         calls that wait for the round's progress
//
// Rounds are in round_driver.cc; restarts, peers, views and new plans in round_driver_world.cc.
// Comes from: MakeEngine, then the calls of RoundEngine. Goes to: RoundFsm, the parts, RoundLog,
// VoteSink.
// Thread safety: RoundEngine from any thread, Open before all else; the rest on the job's strand.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/payload.h"
#include "server/durability/round_log.h"
#include "server/engine/frame_admission.h"
#include "server/engine/initial_weights.h"
#include "server/engine/plan_changes.h"
#include "server/engine/round_control.h"
#include "server/engine/round_engine.h"
#include "server/engine/round_meter.h"
#include "server/engine/slot_sinks.h"
#include "server/engine/state_captures.h"
#include "server/engine/sweep.h"
#include "server/engine/trainer_sessions.h"
#include "server/extents/contributions.h"
#include "server/extents/reducer.h"
#include "server/recovery/recovery.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/momentum_watch.h"
#include "server/round/round_fsm.h"
#include "server/round/waiters.h"

namespace ballast::server {

class RoundDriver final : public RoundEngine, private RoundControl {
 public:
  // A driver's initial parts, made by MakeEngine.
  struct Parts {
    RoundFsm fsm;
    Contributions contributions;
    ModelState state;
    std::shared_ptr<RoundLog> log;
  };

  // All objects in `deps` outlive this.
  RoundDriver(const EngineConfig& config, const EngineDeps& deps, Parts parts);

  // Once, by the owner of the new driver, before all else: binds its strand to its lifetime, and
  // puts a durable job, of which `recovered` is not null, where its log ends.
  void Open(const Recovered* recovered);

  TrainerCalls& trainers() override { return trainers_; }
  ChangeCalls& changes() override { return changes_; }
  CaptureCalls& captures() override { return captures_; }
  void Start(bool restarted) override;
  void Begin(uint32_t slot, RoundBegin begin) override;
  void Frame(const FrameHeader& frame, Payload payload) override;
  void PeerVote(uint32_t epoch, uint64_t round, Vote vote,
                std::function<void(const VoteAnswer&)> answer) override;
  void VoteRefused(uint64_t round, absl::Status why) override;
  void PeerLost(uint32_t server, std::string why) override;
  void Status(std::function<void(JobStatus)> done) override;
  void Fail(absl::Status status) override;
  void FailUnopened(absl::Status status) override;
  void OnEnd(std::function<void(const absl::Status& why, uint64_t round)> callback) override;
  uint64_t job() const override { return job_; }
  uint32_t window_extents() const override {
    return window_extents_.load(std::memory_order_relaxed);
  }

  // Also for the simulator, while the strand is idle.
  const RoundFsm& fsm() const { return fsm_; }
  const std::optional<DecisionRecord>& last_decision() const override { return last_decision_; }
  const absl::Status& failure() const override { return failure_; }
  // The simulated process has ended: drops waiting tasks, and runs nothing any more.
  void Abandon() { strand_.Close(); }

 private:
  void Feed(const Input& input) override;
  void CarryOut(const Effects& effects) override;
  void FailLater(const absl::Status& status) override;
  void StorageFailed(const absl::Status& status) override;
  absl::Status EnterEpoch(const JobPlan& plan, uint32_t window_extents, Effects* effects) override;
  absl::Status TakeGrown(const JobPlan& plan, uint32_t window_extents,
                         std::shared_ptr<RoundLog> log) override;
  const std::shared_ptr<RoundLog>& log() const override { return log_; }

  void Resume(const Recovered& recovered);
  // `log` replaces the present log, and its images the state's.
  void UseLog(std::shared_ptr<RoundLog> log);

  void Do(const PrepareRound& effect);
  void Do(const ApplyRound& effect);
  void Do(const SkipRound& effect);
  void Do(const OpenRound& effect);
  void Do(const FailJob& effect);
  void Do(const FinishJob& effect);

  TrainerSessions::Deps TrainerDeps();
  StateCaptures::Deps CaptureDeps();
  void OnStepped();
  void OnReduced(uint32_t extent, const ReducedNorm& reduced);
  // The round is decided: tells the trainers, and the log.
  void TellResult(uint64_t round, const Decision& decision,
                  const SlotSinks::WeightBytes& weight_bytes);
  // Starts the writes of due images, so that the log can forget.
  void KeepImages();
  void End();

  const uint64_t job_;
  const EngineConfig config_;
  const EngineDeps deps_;
  std::atomic<uint32_t> window_extents_;  // written on the strand
  JobStrand strand_;

  RoundFsm fsm_;
  RoundMeter meter_;
  Contributions contributions_;
  ModelState state_;
  std::shared_ptr<RoundLog> log_;  // a capture may outlive its replacement
  Waiters waiters_;
  SlotSinks sinks_;
  TrainerSessions trainers_;
  InitialWeights initial_;
  FrameAdmission admission_;
  Reducer reducer_;
  Sweep sweep_;
  PlanChanges changes_;
  StateCaptures captures_;
  Effects start_effects_;  // Start carries them out
  std::optional<DecisionRecord> last_decision_;
  MomentumWatch momentum_;
  absl::Status failure_;  // why the job has ended; OK: it has not
  std::function<void(const absl::Status&, uint64_t)> on_end_;
};

}  // namespace ballast::server
