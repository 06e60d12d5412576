// SimEngine: the driver of one job's rounds in one server process. It does what server/round's
// Engine does, in the same order, over the same production objects (RoundFsm, Contributions,
// ExtentStore, Checkpointer, recovery, step plan, kernels); only strand, workers, log threads and
// streams are replaced by events. Keep it in step with RoundDriver and its parts in server/round.
// Comes from: SimServer. Goes to: the production objects, sinks.
// Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/optim/dispatch.h"
#include "server/reduce/reduce.h"
#include "server/round/capture.h"
#include "server/round/checkpointer.h"
#include "server/round/contributions.h"
#include "server/round/recovery.h"
#include "server/round/round_engine.h"
#include "server/round/round_fsm.h"
#include "server/round/step_plan.h"
#include "server/state/extent_store.h"
#include "server/tier/nvme_tier.h"
#include "tests/sim/disk.h"
#include "tests/sim/mutants.h"
#include "tests/sim/oracle.h"
#include "tests/sim/threads.h"

namespace ballast::sim {

// As timing.lease: silence after which a seat is taken away.
inline constexpr Tick kLease = 10 * kSecond;
inline constexpr Tick kReturnWait = 2500 * kMillisecond;

// What the session of a slot adds to the production interface: bytes are counted as received when
// the engine has taken them.
class SimSink : public server::SlotSink {
 public:
  virtual void OnTaken(size_t bytes) = 0;
};

struct SimEngineDeps {
  World* world = nullptr;
  const Swarm* swarm = nullptr;
  Oracle* oracle = nullptr;
  SimDisk* disk = nullptr;
  SimThreads* threads = nullptr;
  NodeId node = kNobody;
  uint32_t server_id = 0;
  uint32_t window_extents = 64;
  Mutant mutant = Mutant::kNone;
  bool damaged = false;  // the files were damaged while the server was down
  // A peer is to be offered a vote; the disk failed and the process must end.
  std::function<void(uint32_t epoch, uint64_t round, uint32_t to_server, const Vote&)> send_vote;
  std::function<void(const absl::Status&)> storage_failed;
};

class SimEngine {
 public:
  using SinkPtr = std::shared_ptr<SimSink>;
  using Attached = std::function<void(absl::StatusOr<server::SlotWelcome>)>;

  // As Engine::Make: allocates, recovers from `storage`, and goes on where that ends.
  static absl::StatusOr<std::unique_ptr<SimEngine>> Make(
      const server::JobPlan& plan, const SimEngineDeps& deps,
      std::unique_ptr<server::JobStorage> storage);

  void Start(bool restarted);
  void AttachSlot(const server::SlotHello& hello, const SinkPtr& sink, const Attached& done);
  // `silent_for`: the stream stands, and nothing was heard for so long.
  void SlotLost(uint32_t slot, const server::SlotSink* sink, const std::string& why,
                Tick silent_for = 0);
  void Begin(uint32_t slot, const server::RoundBegin& begin);
  void Frame(const FrameHeader& frame, Payload payload);
  // A frame that comes from no session: what is refused is told to nobody.
  void StrayFrame(const FrameHeader& frame, Payload payload);
  void Leave(uint32_t slot, uint64_t incarnation);
  void FetchState(uint32_t slot, uint64_t round, bool weights, std::vector<uint32_t> arrays);
  server::VoteAnswer PeerVote(uint32_t epoch, uint64_t round, const Vote& vote);
  void VoteRefused(uint64_t round, const absl::Status& why);
  void Fail(const absl::Status& status) { Feed(server::FailInput{status}); }

  // As RoundEngine's of the same names.
  void Seal(uint32_t epoch, const std::function<absl::Status(const server::JobPlan&)>& save,
            const std::function<void(absl::StatusOr<server::SealAnswer>)>& done);
  void Adopt(const server::JobPlan& plan, const std::function<absl::Status()>& save,
             const std::function<void(absl::Status)>& done);
  bool SlotOpen(uint32_t slot) const;
  bool AnybodyOpen() const;
  void OnSeatFree(std::function<void(uint32_t slot, uint64_t incarnation, bool left)> callback) {
    on_seat_free_ = std::move(callback);
  }

  // As RoundEngine's of the same names. What becomes of `done` ends with the process.
  void HoldState(const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void CaptureState(uint64_t round, server::TakeExtent take,
                    std::function<void(absl::StatusOr<server::CapturedRound>)> done);
  void ReleaseState();
  // Whether the last capture was told to end, or the log wanted the room that it held.
  bool had_to_give_way() const { return deps_.world->gave_way(deps_.node); }

  const server::RoundFsm& fsm() const { return fsm_; }
  server::ExtentStore* store() { return &store_; }
  bool ended() const { return ended_; }
  const absl::Status& failure() const { return failure_; }
  // Nothing is on its way to the disk.
  bool disk_idle() const {
    return deps_.threads->idle() && !checkpointer_.initial_pending() && !initial_unflushed_;
  }
  // Whether the extent's planes are in memory.
  bool IsHere(uint32_t extent) const { return nvme_ == nullptr || nvme_->IsHere(extent); }

  // `nvme`: the store's tier, if it is on NVMe.
  SimEngine(const SimEngineDeps& deps, server::RoundFsm fsm, server::Contributions contributions,
            server::ExtentStore store, server::NvmeTier* nvme, server::Checkpointer checkpointer,
            std::shared_ptr<server::RoundLog> log);

 private:
  bool Alive() const { return deps_.world->Life(deps_.node) == life_; }
  SimClock* clock() const { return deps_.world->clock(deps_.node); }
  // Of seats and leases.
  Tick Now() const { return Is(Mutant::kLeaseOnWallClock) ? clock()->Wall() : clock()->Now(); }
  void After(Tick full, EventKind kind, std::function<void()> action);
  // For the log's tasks: `done` comes back as an event of its own.
  std::function<void(absl::Status)> OnStrand(std::function<void(const absl::Status&)> done);

  struct Seat {
    bool seen = false;
    Tick held_until = 0;
    Tick away_since = 0;
  };

  void AdoptFlushed(const server::JobPlan& plan, const std::function<absl::Status()>& save,
                    const std::function<void(absl::Status)>& done);
  void GoOver(const server::EpochRecord& before);
  void WatchLease(uint32_t slot);
  void TellSeatFree(uint32_t slot);
  void Resume(server::Recovered recovered);
  absl::Status CheckAttach(const server::SlotHello& hello) const;
  void SendLastRound(uint32_t slot);
  uint64_t WeightBytes(const std::vector<uint32_t>& extents) const;
  void SendWeightsOf(SimSink* sink, uint32_t extent);
  void SendArrayOf(SimSink* sink, uint32_t extent, uint32_t array);

  void Feed(const server::Input& input);
  void CarryOut(const server::Effects& effects);
  uint32_t Land(const FrameHeader& frame, const Payload& payload);
  void PutInitial(const FrameHeader& frame, const Payload& payload);
  void Refuse(uint32_t slot, const server::FrameRefused& refused, const Payload& payload);
  void Do(const server::InitialComplete& effect);
  void Do(const server::AckSlot& effect);
  void Do(const server::MoveWindow& effect);
  void Do(const server::ReduceExtent& effect);
  void Do(const server::PrepareRound& effect);
  void Do(const server::SendVote& effect);
  void Do(const server::ApplyRound& effect);
  void Do(const server::SkipRound& effect);
  void Do(const server::OpenRound& effect);
  void Do(const server::FailSlot& effect);
  void Do(const server::FailJob& effect);
  void Do(const server::FinishJob& effect);

  // What a tier on NVMe adds (engine_tier.cc), as server::Engine's of the same names.
  struct StateStream {
    uint32_t slot = 0;
    SinkPtr sink;
    uint64_t round = 0;
    bool weights = false;
    std::vector<uint32_t> arrays;
    std::vector<uint32_t> extents;
    size_t next = 0;
    std::function<void()> end;
  };
  void ConnectTier();
  std::vector<uint32_t> NextSweep() const;
  void TakeInitial(uint32_t extent);
  void OnInitialSaved(const absl::Status& status);
  void OnInitialFlushed(const absl::Status& status);
  void PumpSweep(const std::shared_ptr<server::StepPlan>& plan);
  void EndSweep();
  void FlushTier();
  void SaveOldExtents();
  bool StillWanted(const StateStream& stream) const;
  void SendState(const std::shared_ptr<StateStream>& stream);
  void SendExtentState(const StateStream& stream, uint32_t extent);

  // What snapshots ask for (engine_snapshot.cc), as server::Engine's of the same names.
  struct CaptureOrder {
    uint64_t round = 0;
    server::TakeExtent take;
    std::function<void(absl::StatusOr<server::CapturedRound>)> done;
  };
  void OnHeld(const absl::StatusOr<server::HeldState>& held,
              const std::function<void(absl::StatusOr<uint64_t>)>& done);
  absl::Status GivenUp() const;
  void StartCapture();
  void EndCapture(const CaptureOrder& order, const absl::StatusOr<server::CapturedRound>& result);

  server::Ack MakeAck(bool flush) const;
  void PumpCheckpoints();
  void OnImageWritten(const absl::Status& status);
  void LogExtent(uint32_t extent, const server::ReducedNorm& reduced);
  void PrepareNow(const server::PreparedRecord& record);
  void SendResult(uint64_t round, const Decision& decision, uint64_t weight_bytes);
  void OnReduced(const std::shared_ptr<server::ReduceWork>& work);
  void StepExtent(uint32_t extent, const std::shared_ptr<server::StepPlan>& plan);
  void OnExtentStepped(uint32_t extent, uint64_t version,
                       const std::shared_ptr<const std::vector<char>>& weight,
                       const std::shared_ptr<server::StepPlan>& plan);
  void End();

  // Mutants (engine_mutants.cc).
  bool Is(Mutant mutant) const { return deps_.mutant == mutant; }
  static void CoverRecovered(World* world, const server::Recovered& recovered);
  static void SpoilRecovered(Mutant mutant, const server::JobPlan& plan,
                             server::Recovered* recovered);
  void SumInOrderOfArrival(server::ReduceWork* work);
  void AddPushAgain(uint32_t slot, const server::FrameRefused& refused, const Payload& payload);
  void InventVotes(const server::SendVote& effect);

  const SimEngineDeps deps_;
  const uint64_t life_;
  const optim::KernelTable& step_kernels_;
  const reduce::KernelTable& reduce_kernels_;

  server::RoundFsm fsm_;
  server::Contributions contributions_;
  server::ExtentStore store_;
  server::NvmeTier* const nvme_;  // store_'s tier, if it is on NVMe; else null
  server::Checkpointer checkpointer_;
  std::shared_ptr<server::RoundLog> log_;
  std::optional<server::PreparedRecord> prepare_waiting_;
  server::Effects start_effects_;
  std::set<uint32_t> ahead_;
  std::optional<RoundResult> last_result_;
  std::optional<server::RoundDone> last_done_;
  std::vector<std::function<void()>> after_apply_;
  std::vector<std::function<void()>> after_durable_;
  std::vector<std::function<void()>> after_reduce_;
  uint32_t reducing_ = 0;
  std::vector<SinkPtr> sinks_;  // per slot
  std::vector<Seat> seats_;     // per slot
  std::function<void(uint32_t, uint64_t, bool)> on_seat_free_;
  std::set<uint32_t> has_gradient_;  // extents that are reduced, in this process or the log
  std::vector<std::function<void()>> after_init_;
  // The weights of the present version by extent; whoever asks again gets the same bytes.
  std::vector<std::shared_ptr<const std::vector<char>>> weights_;
  std::vector<std::shared_ptr<const std::vector<char>>> older_weights_;  // for a mutant
  bool stray_ = false;
  size_t extents_to_step_ = 0;
  std::vector<uint32_t> sweep_;
  size_t sweep_next_ = 0;
  size_t sweep_under_way_ = 0;
  bool sweep_backward_ = false;
  size_t saving_old_ = 0;
  // Initial weights by extent while their frames come in; how many are on their way to the slots.
  std::map<uint32_t, std::shared_ptr<std::vector<char>>> staged_;
  size_t initial_saving_ = 0;
  bool initial_unflushed_ = false;
  uint64_t weight_overflows_ = 0;
  std::map<uint32_t, std::vector<uint32_t>> arrivals_;  // slots per extent, for a mutant
  bool holds_ = false;                                  // from Hold until it is let go, or captured
  std::optional<server::HeldState> held_;
  bool release_wanted_ = false;  // while the hold is on its way
  std::optional<CaptureOrder> capture_order_;
  std::shared_ptr<server::CaptureRun> capturing_;
  std::shared_ptr<Executor> capture_thread_;
  absl::Status failure_;
  bool ended_ = false;
};

}  // namespace ballast::sim
