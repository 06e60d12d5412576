// Engine: RoundEngine's one implementation, as a class of its own so that its parts can stand in
// files of their own: rounds in round_engine.cc, slots and recovery in engine_slots.cc, disks in
// engine_storage.cc, what is different with a tier on NVMe in engine_tier.cc, growth in
// engine_growth.cc, snapshots in engine_snapshot.cc.
// Comes from: RoundEngine::Create. Goes to: RoundFsm, kernels, RoundLog, sinks.
// Thread safety: public methods post to the strand; everything private runs on it, apart from the
// tile bodies, which run on workers.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/executor.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "server/durability/round_log.h"
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

namespace ballast::server {

// The result of a decided round, without what only this process' clock knows.
RoundResult ResultOf(uint64_t round, const Decision& decision);

// Buffers that weights go out from: of fp32, then of 16-bit extents.
absl::StatusOr<std::vector<BufferPool>> MakeWeightPools(const Layout& layout, size_t owned);

class Engine final : public RoundEngine {
 public:
  Engine(const EngineConfig& config, const EngineDeps& deps, RoundFsm fsm,
         Contributions contributions, ExtentStore store, NvmeTier* nvme, Checkpointer checkpointer,
         std::shared_ptr<RoundLog> log)
      : config_(config),
        deps_(deps),
        strand_(deps.executor),
        step_kernels_(optim::Kernels(deps.isa)),
        reduce_kernels_(reduce::Kernels(deps.isa)),
        job_(fsm.plan().job),
        name_(fsm.plan().spec.name),
        window_extents_(config.window_extents),
        fsm_(std::move(fsm)),
        contributions_(std::move(contributions)),
        store_(std::move(store)),
        nvme_(nvme),
        checkpointer_(std::move(checkpointer)),
        log_(std::move(log)),
        sinks_(fsm_.plan().epoch.seats()),
        seats_(fsm_.plan().epoch.seats()) {
    if (deps_.metrics != nullptr) metrics_ = deps_.metrics->Job(name_);
  }
  ~Engine() override;

  static absl::StatusOr<std::shared_ptr<Engine>> Make(const JobPlan& plan,
                                                      const EngineConfig& config,
                                                      const EngineDeps& deps,
                                                      std::unique_ptr<JobStorage> storage);

  void Start(bool restarted) override;

  void AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                  std::function<void(absl::StatusOr<SlotWelcome>)> done) override {
    Post([this, hello, sink = std::move(sink), done = std::move(done)] {
      DoAttach(hello, sink, done);
    });
  }

  void SlotLost(uint32_t slot, const SlotSink* sink, std::string why,
                std::chrono::nanoseconds silent_for) override {
    Post([=, this] {
      if (slot < sinks_.size() && sinks_[slot] != nullptr && sinks_[slot].get() == sink) {
        DoSlotLost(slot, why, silent_for);
      }
    });
  }

  void Begin(uint32_t slot, RoundBegin begin) override {
    Post([this, slot, begin = std::move(begin)] {
      if (slot >= sinks_.size() || sinks_[slot] == nullptr) return;
      if (fsm_.phase() == Phase::kIdle) begun_at_ = deps_.clock->Now();
      Feed(BeginInput{slot, begin});
    });
  }

  void Frame(const FrameHeader& frame, Payload payload) override {
    // On the poller that read it, if the job has nothing else to do: a copy, never more.
    Dispatch([this, frame, payload = std::move(payload)]() mutable {
      DoFrame(frame, std::move(payload));
    });
  }

  void Leave(uint32_t slot, uint64_t incarnation) override {
    Post([this, slot, incarnation] {
      // Its stream may have been closed by a new epoch meanwhile.
      if (!fsm_.plan().epoch.Holds(slot, incarnation)) return;
      sinks_[slot] = nullptr;
      Feed(SlotLeftInput{slot});
      TellSeatFree(slot);
    });
  }

  void FetchState(uint32_t slot, uint64_t round, bool weights,
                  std::vector<uint32_t> arrays) override {
    Post([=, this] { DoFetchState(slot, round, weights, arrays); });
  }

  void PeerVote(uint32_t epoch, uint64_t round, Vote vote,
                std::function<void(const VoteAnswer&)> answer) override {
    Post([this, epoch, round, vote = std::move(vote), answer = std::move(answer)] {
      Feed(VoteInput{epoch, round, vote});
      answer(fsm_.AnswerVote(round, vote.server));
    });
  }

  void VoteRefused(uint64_t round, absl::Status why) override {
    Post([this, round, why = std::move(why)] {
      if (fsm_.phase() == Phase::kPrepared && fsm_.round() == round) Feed(FailInput{why});
    });
  }

  void PeerLost(uint32_t server, std::string why) override {
    Post([=, this] {
      const auto& servers = fsm_.plan().servers;
      if (!std::binary_search(servers.begin(), servers.end(), server)) return;
      if (fsm_.durable()) return;  // It comes back, and says what it lacks.
      ErrorFields fields{.job = name_, .round = fsm_.round(), .server = static_cast<int>(server)};
      Feed(
          FailInput{ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                  absl::StrCat("job \"", name_, "\": server ", server,
                                               " was lost in round ", fsm_.round(), " (", why, ")"),
                                  fields)});
    });
  }

  void Seal(uint32_t epoch, std::function<absl::Status(const JobPlan&)> save,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    Post([this, epoch, save = std::move(save), done = std::move(done)] {
      DoSeal(epoch, save, done);
    });
  }
  void Adopt(JobPlan plan, uint32_t window_extents, std::function<absl::Status()> save,
             std::function<void(absl::Status)> done) override {
    Post([this, adoption = Adoption{std::move(plan), window_extents, std::move(save),
                                    std::move(done)}] { DoAdopt(adoption); });
  }
  void SlotOpen(uint32_t slot, std::function<void(SeatUse)> done) override {
    Post([this, slot, done = std::move(done)] { done(UseOf(slot)); });
  }
  void OnSeatFree(SeatFree callback) override {
    Post([this, callback = std::move(callback)] { on_seat_free_ = callback; });
  }

  void UserState(uint32_t slot, std::function<void(std::string)> done) override {
    Post([this, slot, done = std::move(done)] { done(fsm_.UserState(slot)); });
  }

  void ExpectSlots() override {
    Post([this] { WatchSeats(); });
  }

  void SlotGrows(uint32_t slot, bool grows) override {
    Post([this, slot, grows] {
      if (slot < sinks_.size()) Feed(SlotGrowsInput{slot, grows});
    });
  }

  void Extend(JobPlan plan, uint32_t window_extents, GrowthFiles files,
              std::function<void(absl::Status)> done) override {
    Post([this, window_extents, plan = std::move(plan), files = std::move(files),
          done = std::move(done)] { DoExtend(plan, window_extents, files, done); });
  }

  void Status(std::function<void(JobStatus)> done) override {
    Post([this, done = std::move(done)] {
      JobStatus status;
      fsm_.FillStatus(&status);
      status.state_bytes = store_.bytes();
      for (const auto& sink : sinks_) status.open_streams += sink != nullptr;
      status.state = fsm_.phase() == Phase::kFailed     ? "failed"
                     : fsm_.phase() == Phase::kFinished ? "finished"
                                                        : "running";
      done(std::move(status));
    });
  }

  void HoldState(std::function<void(absl::StatusOr<uint64_t>)> done) override {
    Post([this, done = std::move(done)] { DoHoldState(done); });
  }
  void CaptureState(uint64_t round, TakeExtent take,
                    std::function<void(absl::StatusOr<CapturedRound>)> done) override {
    Post([this, order = CaptureOrder{round, std::move(take), std::move(done)}] {
      DoCaptureState(order);
    });
  }
  void ReleaseState() override {
    Post([this] { DoReleaseState(); });
  }

  void Fail(absl::Status status) override {
    Post([this, status = std::move(status)] { Feed(FailInput{status}); });
  }

  void OnEnd(std::function<void(const absl::Status&, uint64_t)> callback) override {
    Post([this, callback = std::move(callback)] {
      if (ended_) {
        callback(failure_, fsm_.round());
      } else {
        on_end_ = callback;
      }
    });
  }

  uint64_t job() const override { return job_; }
  uint32_t window_extents() const override {
    return window_extents_.load(std::memory_order_relaxed);
  }

 private:
  // Keeps the engine alive until the task has run.
  void Post(std::function<void()> task) {
    strand_.Post([self = shared_from_this(), task = std::move(task)] { task(); });
  }
  // As Post, but on the calling thread when the job has nothing else to do. For what a poller or a
  // worker brings: waking another thread for it costs more than doing it.
  void Dispatch(std::function<void()> task) {
    strand_.Dispatch([self = shared_from_this(), task = std::move(task)] { task(); });
  }

  // For the log's threads: runs `task` on the strand if the engine still lives. They never hold the
  // engine themselves, since its end waits for theirs.
  template <typename Task>
  std::function<void(absl::Status)> FromDisk(Task task) {
    return [weak = weak_from_this(), post = strand_.Poster(), task](absl::Status status) {
      post([weak, task, status] {
        const auto self = std::static_pointer_cast<Engine>(weak.lock());
        if (self != nullptr) task(self.get(), status);
      });
    };
  }

  struct Adoption {
    JobPlan plan;
    uint32_t window_extents = 0;
    std::function<absl::Status()> save;
    std::function<void(absl::Status)> done;
  };
  // What is known of the process in a seat beside its stream.
  struct Seat {
    bool seen = false;  // its stream has been open
    // While its stream is not open: nobody else gets the seat until then.
    std::chrono::nanoseconds held_until = std::chrono::nanoseconds::min();
    std::chrono::nanoseconds away_since{0};  // likewise: when it was heard last
    std::string why_away;                    // likewise; told to the others
  };

  void Resume(const Recovered& recovered);
  void DoSeal(uint32_t epoch, const std::function<absl::Status(const JobPlan&)>& save,
              const std::function<void(absl::StatusOr<SealAnswer>)>& done);
  void DoAdopt(const Adoption& adoption);
  void AdoptFlushed(const Adoption& adoption);
  absl::Status GoOver(const EpochRecord& before);
  void DoSlotLost(uint32_t slot, const std::string& why, std::chrono::nanoseconds silent_for);
  // Looks whether the slot is still away when its lease has run out.
  void WatchLease(uint32_t slot);
  void TellSeatFree(uint32_t slot);
  SeatUse UseOf(uint32_t slot) const;
  // At the home of a durable job: says to `to` that the slot is away or back.
  void TellOfTrainer(uint32_t slot, SlotSink* to);
  absl::Status CheckAttach(const SlotHello& hello) const;
  void DoAttach(const SlotHello& hello, const std::shared_ptr<SlotSink>& sink,
                const std::function<void(absl::StatusOr<SlotWelcome>)>& done);
  void SendLastRound(uint32_t slot);
  void DoExtend(const JobPlan& plan, uint32_t window_extents, const GrowthFiles& files,
                const std::function<void(absl::Status)>& done);
  absl::Status MakeGrownFiles(const JobPlan& plan, const GrowthFiles& files);
  absl::Status CommitGrown(const JobPlan& plan, uint32_t window_extents, const GrowthFiles& files);
  absl::Status TakeGrown(const JobPlan& plan, uint32_t window_extents);
  struct CaptureOrder {
    uint64_t round = 0;
    TakeExtent take;
    std::function<void(absl::StatusOr<CapturedRound>)> done;
  };
  void DoHoldState(const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void OnHeld(const HeldState& held, const absl::Status& status,
              const std::function<void(absl::StatusOr<uint64_t>)>& done);
  void DoCaptureState(const CaptureOrder& order);
  void StartCapture();
  void DoReleaseState();
  void EndCapture();
  absl::Status GivenUp() const;
  void WatchSeats();
  bool watching_ = false;
  void DoFetchState(uint32_t slot, uint64_t round, bool weights, std::vector<uint32_t> arrays);
  void SendWeightsOf(SlotSink* sink, uint32_t extent);
  // `owner` keeps the extent's planes where they are.
  void SendArrayOf(SlotSink* sink, uint32_t extent, uint32_t array,
                   const std::shared_ptr<const void>& owner);
  // State on its way out, an extent after the other: as much at a time as is in memory.
  struct StateStream {
    uint32_t slot = 0;
    std::shared_ptr<SlotSink> sink;
    uint64_t round = 0;
    bool weights = false;
    std::vector<uint32_t> arrays;
    std::vector<uint32_t> extents;
    size_t next = 0;
    std::function<void()> end;
  };
  void SendState(std::shared_ptr<StateStream> stream);
  void SendExtentState(const std::shared_ptr<StateStream>& stream, uint32_t extent);
  bool StillWanted(const StateStream& stream) const;

  // Steps the FSM and carries out its effects in order.
  void Feed(const Input& input) {
    strand_.AssertCurrent();
    Effects effects;
    fsm_.Step(input, &effects);
    CarryOut(effects);
  }
  void CarryOut(const Effects& effects) {
    for (const Effect& effect : effects) {
      std::visit([this](const auto& e) { Do(e); }, effect);
    }
  }

  void DoFrame(const FrameHeader& frame, Payload payload);
  // Puts the bytes of an admitted frame where they belong, and returns the checksum of identity and
  // payload. What a damaged frame leaves there counts as absent.
  absl::StatusOr<uint32_t> Land(const FrameHeader& frame, const Payload& payload);
  absl::Status PutInitial(const FrameHeader& frame, const Payload& payload);
  void Refuse(uint32_t slot, const FrameRefused& refused);
  void Do(const InitialComplete& effect);
  void Do(const AckSlot& effect);
  void Do(const MoveWindow& effect);
  void Do(const ReduceExtent& effect);
  void Do(const PrepareRound& effect);
  void Do(const SendVote& effect);
  void Do(const ApplyRound& effect);
  void Do(const SkipRound& effect);
  void Do(const OpenRound& effect);
  void Do(const FailSlot& effect);
  void Do(const FailJob& effect);
  void Do(const FinishJob& effect);

  Ack MakeAck(bool flush) const {
    return {.round = fsm_.round(),
            .window_base = fsm_.window_base(),
            .durable_round = log_->durable_round(),
            .applied_round = fsm_.round() - 1,
            .flush = flush};
  }
  // Durable jobs: writes of slots, and what waits for them.
  void PumpCheckpoints();
  // With a tier on NVMe.
  void ConnectTier();
  void DisconnectTier();
  void TakeInitial(uint32_t extent);
  void OnInitialSaved(const absl::Status& status);
  void OnInitialFlushed(const absl::Status& status);
  void SaveOldExtents();
  void FlushTier();
  void EndSweep();
  std::vector<uint32_t> NextSweep() const;
  absl::Status ReadImage(uint32_t extent, void* to);
  void GrowNow(const JobPlan& plan, uint32_t window_extents, const GrowthFiles& files,
               const std::function<void(absl::Status)>& done);
  void OnImageWritten(const absl::Status& status);
  void WatchRoom();
  void StorageFailed(const absl::Status& status);
  void LogExtent(uint32_t extent, const ReducedNorm& reduced);
  void PrepareNow(const PreparedRecord& record);
  uint64_t WeightBytes(const std::vector<uint32_t>& extents) const;
  void SendResult(uint64_t round, const Decision& decision, uint64_t weight_bytes);
  // Takes the sweep's next extents into work.
  void PumpSweep(const std::shared_ptr<StepPlan>& plan);
  // `extent` is acquired. `version` of OnExtentStepped as in Tier::Release.
  void StepExtent(uint32_t extent, const std::shared_ptr<StepPlan>& plan);
  void OnExtentStepped(uint32_t extent, uint64_t version, const BufferRef& weight,
                       const std::shared_ptr<StepPlan>& plan);
  absl::StatusOr<BufferRef> WeightBuffer(DType dtype);
  void LogEnd(const absl::Status& why) const;
  void End();

  const EngineConfig config_;
  const EngineDeps deps_;
  Strand strand_;
  const optim::KernelTable& step_kernels_;
  const reduce::KernelTable& reduce_kernels_;
  const uint64_t job_;
  const std::string name_;
  std::shared_ptr<JobMetrics> metrics_;  // null without metrics

  std::atomic<uint32_t> window_extents_;  // written on the strand

  // Everything below belongs to the strand.
  RoundFsm fsm_;
  Contributions contributions_;
  ExtentStore store_;
  NvmeTier* const nvme_;  // store_'s tier, if it is on NVMe; else null
  Checkpointer checkpointer_;
  std::shared_ptr<RoundLog> log_;  // a capture may outlive what takes its place
  uint32_t log_generation_ = 0;    // grows when files of a grown job take the place of the old ones
  // Files of the job as it will be, when it has been told to grow to this layout version.
  std::unique_ptr<JobStorage> grown_files_;
  uint32_t grown_version_ = 0;
  std::optional<PreparedRecord> prepare_waiting_;  // for the initial weights to be on disk
  Effects start_effects_;                          // what Start carries out
  std::set<uint32_t> ahead_;  // extents that hold the open round's result since before a restart
  // The newest finished round, for trainers that were away when it ended.
  std::optional<RoundResult> last_result_;
  std::optional<RoundDone> last_done_;
  std::optional<DecisionRecord> last_decision_;
  // Seals that wait for the flush under way, and adoptions that wait for the workers.
  std::vector<std::function<void()>> after_durable_;
  std::vector<std::function<void()>> after_reduce_;
  std::deque<Adoption> adopting_;  // wait for the disk, in the order in which it answers
  uint32_t reducing_ = 0;          // extents the workers are summing
  std::vector<std::function<void()>> after_apply_;  // attaches that wait for the open round's end
  std::vector<std::shared_ptr<SlotSink>> sinks_;    // per slot; null: no stream
  std::vector<Seat> seats_;                         // per slot
  SeatFree on_seat_free_;
  std::vector<std::function<void()>> after_init_;  // fetches that wait for the initial weights
  std::vector<BufferPool> weight_pools_;           // fp32, 16-bit; made at the first use
  // The weights of the present version by extent, as the step left them or a fetch formed them:
  // whoever asks for them again gets the same buffers.
  std::vector<BufferRef> weights_;
  // The sweep of the round that is applied, and the direction of the next one.
  std::vector<uint32_t> sweep_;
  size_t sweep_next_ = 0;
  size_t sweep_under_way_ = 0;
  bool sweep_backward_ = false;
  // Initial weights on their way to a tier on NVMe: what has come, what is being written, and
  // whether all of it survives.
  std::map<uint32_t, BufferRef> staged_;
  size_t initial_saving_ = 0;
  bool initial_unflushed_ = false;
  size_t saving_old_ = 0;
  size_t extents_to_step_ = 0;
  uint64_t weight_overflows_ = 0;
  std::chrono::nanoseconds begun_at_{0};
  std::chrono::nanoseconds prepared_at_{0};
  std::chrono::nanoseconds decided_at_{0};
  std::chrono::nanoseconds stepped_at_{0};
  absl::Status failure_;
  bool ended_ = false;
  std::function<void(const absl::Status&, uint64_t)> on_end_;
  // A snapshot: what is held for it, and until which round; or what tells its thread to give up.
  bool pace_captures_ = true;           // not after one for which the log had no room
  std::shared_ptr<RoundLog> held_log_;  // from HoldState until a capture has it
  std::optional<HeldState> held_;
  uint32_t held_layout_ = 0;     // version of the layout that it is of
  bool release_wanted_ = false;  // while the log is asked to hold
  std::optional<CaptureOrder> capture_order_;
  std::shared_ptr<CaptureRun> capturing_;
  std::shared_ptr<Executor> capture_thread_;  // made at the first use
};

}  // namespace ballast::server
