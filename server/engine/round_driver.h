// RoundDriver: feeds the RoundFsm of one job at one server and carries out its effects. The driver
// decides the order of all actions; each of its parts owns the state of one task:
//
//   Intake         a frame, from admission to its register
//   Reducer        sums of complete extents
//   Sweep          the step over the extents
//   StateSender    state on its way out
//   Audience       streams, seats, leases, messages to trainers
//   InitialWeights the job's initial weights
//   CaptureDesk    the state of a round for a snapshot
//   GrownFiles     the files of the grown job
//   Waiters        calls that wait for the round's progress
//
// Rounds are in round_driver.cc; attaching, epochs, growth and restarts in round_driver_world.cc.
// Comes from: Engine. Goes to: RoundFsm, the parts, RoundLog, VoteSink.
// Thread safety: on the job's strand, except the constructor, Resume and window_extents.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/payload.h"
#include "server/durability/round_log.h"
#include "server/engine/audience.h"
#include "server/engine/capture_desk.h"
#include "server/engine/grown_files.h"
#include "server/engine/initial_weights.h"
#include "server/engine/intake.h"
#include "server/engine/round_engine.h"
#include "server/engine/round_meter.h"
#include "server/engine/state_sender.h"
#include "server/engine/sweep.h"
#include "server/extents/contributions.h"
#include "server/extents/reducer.h"
#include "server/recovery/recovery.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/momentum_watch.h"
#include "server/round/round_fsm.h"
#include "server/round/waiters.h"

namespace ballast::server {

class RoundDriver {
 public:
  // A driver's initial parts, made by Engine::Make.
  struct Parts {
    RoundFsm fsm;
    Contributions contributions;
    ModelState state;
    std::shared_ptr<RoundLog> log;
  };

  // `strand` and all objects in `deps` outlive this.
  RoundDriver(JobStrand* strand, const EngineConfig& config, const EngineDeps& deps, Parts parts);

  // Puts the driver of a durable job where the log ends. Before all else, on any thread.
  void Resume(const Recovered& recovered);
  // `log`, at first that of Parts, replaces the present log, and its images the state's. On the
  // strand.
  void UseLog(std::shared_ptr<RoundLog> log);

  // The rest is RoundEngine's, with the same meaning, on the strand.
  void Start(bool restarted);
  void Attach(const SlotHello& hello, const std::shared_ptr<SlotSink>& sink,
              const std::function<void(absl::StatusOr<SlotWelcome>)>& done);
  void Lose(uint32_t slot, const SlotSink* sink, const std::string& why,
            std::chrono::nanoseconds silent_for);
  void Begin(uint32_t slot, const RoundBegin& begin);
  void Frame(const FrameHeader& frame, Payload payload);
  void Leave(uint32_t slot, uint64_t incarnation);
  void FetchState(uint32_t slot, uint64_t round, bool weights, const std::vector<uint32_t>& arrays);
  void LosePeer(uint32_t server, const std::string& why);
  void Seal(uint32_t epoch, const std::function<absl::Status(const JobPlan&)>& save,
            const std::function<void(absl::StatusOr<SealAnswer>)>& done);
  struct Adoption {
    JobPlan plan;
    uint32_t window_extents = 0;
    std::function<absl::Status()> save;
    std::function<void(absl::Status)> done;
  };
  void Adopt(const Adoption& adoption);
  struct Growth {
    JobPlan plan;
    uint32_t window_extents = 0;
    GrowthFiles files;
    std::function<void(absl::Status)> done;
  };
  void Grow(const Growth& growth);
  JobStatus Status() const;
  void HoldState(const CaptureDesk::Held& done);
  void OnEnd(std::function<void(const absl::Status&, uint64_t)> callback);

  // Steps the FSM and carries out its effects in order.
  void Feed(const Input& input);

  const RoundFsm& fsm() const { return fsm_; }
  // Decision of the newest decided round; empty before the first.
  const std::optional<DecisionRecord>& last_decision() const { return last_decision_; }
  Audience& audience() { return audience_; }
  CaptureDesk& captures() { return captures_; }
  // Any thread.
  uint32_t window_extents() const { return window_extents_.load(std::memory_order_relaxed); }

 private:
  void CarryOut(const Effects& effects);
  void Do(const PrepareRound& effect);
  void Do(const ApplyRound& effect);
  void Do(const SkipRound& effect);
  void Do(const OpenRound& effect);
  void Do(const FailJob& effect);
  void Do(const FinishJob& effect);

  Sweep::Deps SweepDeps();
  void OnReduced(uint32_t extent, const ReducedNorm& reduced);
  void PrepareNow(const PreparedRecord& record);
  // The round is decided: tells the trainers, and the log.
  void TellResult(uint64_t round, const Decision& decision,
                  const Audience::WeightBytes& weight_bytes);
  Ack MakeAck(bool flush) const;
  // Sends the whole result of the last round to a slot that missed its end.
  void SendLastRound(uint32_t slot);
  // An adoption is durable, and the workers are idle: the FSM changes its epoch.
  void AdoptFlushed(const Adoption& adoption);
  // The FSM has left the epoch `before`: drops everything that belonged to it.
  absl::Status LeaveEpoch(const EpochRecord& before);
  void GrowNow(const Growth& growth);
  absl::Status CommitGrown(const Growth& growth);
  // `log` is that of the grown files.
  absl::Status TakeGrown(const JobPlan& plan, uint32_t window_extents,
                         std::shared_ptr<RoundLog> log);
  // Starts the writes of due images, so that the log can forget.
  void KeepImages();
  // Fails the job after the effects in progress.
  void FailLater(const absl::Status& status);
  // After a failed write or flush nothing may be assumed about the file: the process ends, and its
  // next start continues from the durable state.
  void StorageFailed(const absl::Status& status);
  void LogEnd(const absl::Status& why) const;
  void End();

  JobStrand* const strand_;
  const EngineConfig config_;
  const EngineDeps deps_;
  std::atomic<uint32_t> window_extents_;  // written on the strand

  RoundFsm fsm_;
  RoundMeter meter_;
  Contributions contributions_;
  ModelState state_;
  std::shared_ptr<RoundLog> log_;  // a capture may outlive its replacement
  Audience audience_;
  InitialWeights initial_;
  Intake intake_;
  Reducer reducer_;
  Sweep sweep_;
  StateSender sender_;
  CaptureDesk captures_;
  GrownFiles grown_;
  Waiters waiters_;
  std::deque<Adoption> adopting_;  // wait for the disk, in the order of its answers
  Effects start_effects_;          // what Start carries out
  std::optional<DecisionRecord> last_decision_;
  MomentumWatch momentum_;
  absl::Status failure_;  // why the job has ended; OK: it has not
  std::function<void(const absl::Status&, uint64_t)> on_end_;
};

}  // namespace ballast::server
