// Engine: RoundEngine's one implementation. It owns the job's strand and its driver, and brings
// every call to the strand; the driver does the work there (round_driver.h).
// Comes from: RoundEngine::Create. Goes to: RoundDriver.
// Thread safety: as RoundEngine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/round_driver.h"
#include "server/engine/round_engine.h"
#include "server/round/job_strand.h"
#include "server/round/policy_report.h"

namespace ballast::server {

class Engine final : public RoundEngine {
 public:
  Engine(const EngineConfig& config, const EngineDeps& deps, RoundDriver::Parts parts)
      : job_(parts.fsm.plan().job),
        strand_(deps.executor),
        driver_(&strand_, config, deps, std::move(parts)) {}

  // As RoundEngine::Create.
  static absl::StatusOr<std::shared_ptr<Engine>> Make(const JobPlan& plan,
                                                      const EngineConfig& config,
                                                      const EngineDeps& deps,
                                                      std::unique_ptr<JobStorage> storage);

  void Start(bool restarted) override {
    Post([this, restarted] { driver_.Start(restarted); });
  }
  void ExpectSlots() override {
    Post([this] { driver_.audience().Expect(); });
  }

  // --- Streams ----------------------------------------------------------------------------------
  void AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                  std::function<void(absl::StatusOr<SlotWelcome>)> done) override {
    Post([this, hello, sink = std::move(sink), done = std::move(done)] {
      driver_.Attach(hello, sink, done);
    });
  }
  void SlotLost(uint32_t slot, const SlotSink* sink, std::string why,
                std::chrono::nanoseconds silent_for) override {
    Post([=, this] { driver_.Lose(slot, sink, why, silent_for); });
  }
  void Begin(uint32_t slot, RoundBegin begin) override {
    Post([this, slot, begin = std::move(begin)] { driver_.Begin(slot, begin); });
  }
  void Frame(const FrameHeader& frame, Payload payload) override {
    // On the poller that read the frame, if the job has nothing else to do: a copy, never more.
    strand_.Dispatch([this, frame, payload = std::move(payload)]() mutable {
      driver_.Frame(frame, std::move(payload));
    });
  }
  void Leave(uint32_t slot, uint64_t incarnation) override {
    Post([this, slot, incarnation] { driver_.Leave(slot, incarnation); });
  }
  void FetchState(uint32_t slot, uint64_t round, bool weights,
                  std::vector<uint32_t> arrays) override {
    Post([=, this] { driver_.FetchState(slot, round, weights, arrays); });
  }

  // --- Peers ------------------------------------------------------------------------------------
  void PeerVote(uint32_t epoch, uint64_t round, Vote vote,
                std::function<void(const VoteAnswer&)> answer) override {
    Post([this, epoch, round, vote = std::move(vote), answer = std::move(answer)] {
      driver_.Feed(VoteInput{epoch, round, vote});
      answer(driver_.fsm().AnswerVote(round, vote.server));
    });
  }
  void VoteRefused(uint64_t round, absl::Status why) override {
    Post([this, round, why = std::move(why)] {
      const RoundFsm& fsm = driver_.fsm();
      const bool waits = fsm.phase() == Phase::kPrepared && fsm.round() == round;
      if (waits) driver_.Feed(FailInput{why});
    });
  }
  void PeerLost(uint32_t server, std::string why) override {
    Post([=, this] { driver_.LosePeer(server, why); });
  }

  // --- Epochs, seats, growth --------------------------------------------------------------------
  void Seal(uint32_t epoch, std::function<absl::Status(const JobPlan&)> save,
            std::function<void(absl::StatusOr<SealAnswer>)> done) override {
    Post([this, epoch, save = std::move(save), done = std::move(done)] {
      driver_.Seal(epoch, save, done);
    });
  }
  void Adopt(JobPlan plan, uint32_t window_extents, std::function<absl::Status()> save,
             std::function<void(absl::Status)> done) override {
    Post([this, adoption = RoundDriver::Adoption{std::move(plan), window_extents, std::move(save),
                                                 std::move(done)}] { driver_.Adopt(adoption); });
  }
  void SlotOpen(uint32_t slot, std::function<void(SeatUse)> done) override {
    Post([this, slot, done = std::move(done)] { done(driver_.audience().UseOf(slot)); });
  }
  void OnSeatFree(SeatFree callback) override {
    Post([this, callback = std::move(callback)] { driver_.audience().OnSeatFree(callback); });
  }
  void StateOfSeat(uint32_t slot, std::function<void(SeatState)> done) override {
    Post([this, slot, done = std::move(done)] {
      done({driver_.fsm().UserState(slot),
            PolicyReportOf(driver_.fsm().policy(), driver_.last_decision())});
    });
  }
  void SlotGrows(uint32_t slot, bool grows) override {
    Post([this, slot, grows] {
      if (slot < driver_.fsm().plan().epoch.seats()) driver_.Feed(SlotGrowsInput{slot, grows});
    });
  }
  void Extend(JobPlan plan, uint32_t window_extents, GrowthFiles files,
              std::function<void(absl::Status)> done) override {
    Post([this, growth = RoundDriver::Growth{std::move(plan), window_extents, std::move(files),
                                             std::move(done)}] { driver_.Grow(growth); });
  }

  // --- Views, snapshots, the end ----------------------------------------------------------------
  void Status(std::function<void(JobStatus)> done) override {
    Post([this, done = std::move(done)] { done(driver_.Status()); });
  }
  void HoldState(std::function<void(absl::StatusOr<uint64_t>)> done) override {
    Post([this, done = std::move(done)] { driver_.HoldState(done); });
  }
  void CaptureState(uint64_t round, TakeExtent take,
                    std::function<void(absl::StatusOr<CapturedRound>)> done) override {
    Post([this, round, take = std::move(take), done = std::move(done)] {
      driver_.captures().Capture(round, take, done);
    });
  }
  void ReleaseState() override {
    Post([this] { driver_.captures().Release(); });
  }
  void Fail(absl::Status status) override {
    Post([this, status = std::move(status)] { driver_.Feed(FailInput{status}); });
  }
  void FailUnopened(absl::Status status) override {
    Post([this, status = std::move(status)] {
      if (!driver_.audience().opened()) driver_.Feed(FailInput{status});
    });
  }
  void OnEnd(std::function<void(const absl::Status&, uint64_t)> callback) override {
    Post([this, callback = std::move(callback)] { driver_.OnEnd(callback); });
  }
  uint64_t job() const override { return job_; }
  uint32_t window_extents() const override { return driver_.window_extents(); }

  // --- The simulator ----------------------------------------------------------------------------
  // While the strand is idle.
  const RoundDriver& driver() const { return driver_; }
  // The simulated process has ended: drops waiting tasks, and runs nothing any more.
  void Abandon() { strand_.Close(); }

 private:
  void Post(std::function<void()> task) { strand_.Post(std::move(task)); }

  const uint64_t job_;
  JobStrand strand_;
  RoundDriver driver_;
};

}  // namespace ballast::server
