// Audience: the trainers of a job as one server sees them. Per slot of the epoch: the sink of the
// open stream, and the seat of the process that holds the slot, with its lease; and the newest
// finished round, for trainers that were away when it ended.
// Comes from: RoundDriver. Goes to: SlotSinks, on_seat_free.
// Thread safety: on the job's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/metrics/metrics.h"
#include "server/engine/round_engine.h"
#include "server/round/job_strand.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class Audience {
 public:
  // A trainer that got its seat never opened its stream.
  using NeverOpened = std::function<void(uint32_t slot)>;

  // What is pointed to outlives this. The seats are those of the FSM's epoch. `metrics` gets the
  // numbers of trainers, and may be null.
  Audience(JobStrand* strand, const RoundFsm* fsm, const Clock* clock, const EngineConfig& config,
           NeverOpened never_opened, std::shared_ptr<JobMetrics> metrics);

  // The job begins. As RoundEngine's Start, ExpectSlots, OnSeatFree and SlotOpen.
  void Start(bool restarted);
  void Expect();
  void OnSeatFree(RoundEngine::SeatFree callback) { on_seat_free_ = std::move(callback); }
  SeatUse UseOf(uint32_t slot) const;
  // No seat becomes free any more: the job has ended.
  void End();
  // Brings the metrics of the trainers up to date, after the FSM has heard that one has left.
  void CountSeats() const;

  // --- Streams ----------------------------------------------------------------------------------
  // Whether the process may open the slot's stream. Errors: STALE_EPOCH, FUTURE_EPOCH,
  // WRONG_INCARNATION, WRONG_VERSION.
  absl::Status CheckHello(const SlotHello& hello) const;
  // The slot's stream is `sink` from now on; an older one ends. The others learn that the trainer
  // is back.
  void Open(uint32_t slot, std::shared_ptr<SlotSink> sink);
  // Says to the slot which of the others are away.
  void TellWhoIsAway(uint32_t slot) const;
  // The stream broke, or was silent for `silent_for`: the seat is kept for its lease. The others
  // learn of it.
  void Lose(uint32_t slot, const std::string& why, std::chrono::nanoseconds silent_for);
  // The slot may take no further part, and gets `status`: as Lose from here on, if it has a stream.
  void Refuse(uint32_t slot, const absl::Status& status);
  // The stream ends for good, with `status` if that is an error.
  void Close(uint32_t slot, const absl::Status& status);
  // The member has left, or its lease has run out: says so through OnSeatFree, unless the job
  // cannot do without this process.
  void TellSeatFree(uint32_t slot);
  // The FSM has left the epoch `before`: all streams end with STALE_EPOCH, and the seats are those
  // of the new epoch.
  void ChangeEpoch(const EpochRecord& before);

  // The slot's stream; null: none, or no such slot.
  const std::shared_ptr<SlotSink>& Sink(uint32_t slot) const;
  bool Has(uint32_t slot) const { return Sink(slot) != nullptr; }
  uint32_t open_streams() const;
  // Whether there ever was one.
  bool opened() const { return opened_; }

  // --- What trainers hear -----------------------------------------------------------------------
  // Calls `say` with every open stream, by slot.
  template <typename Say>
  void Each(Say say) const {
    for (const auto& sink : sinks_) {
      if (sink != nullptr) say(sink.get());
    }
  }
  // `weight_bytes`: those that follow to each slot.
  using WeightBytes = std::function<uint64_t(uint32_t slot)>;
  void TellResult(const RoundResult& result, const WeightBytes& weight_bytes);
  void TellDone(const RoundDone& done);
  // After a restart: what was told before.
  void Remember(const RoundResult& result, const RoundDone& done);
  // Of the newest finished round; nothing before the first.
  const std::optional<RoundResult>& last_result() const { return last_result_; }
  const std::optional<RoundDone>& last_done() const { return last_done_; }

 private:
  // What is known of the process in a seat beside its stream.
  struct Seat {
    bool seen = false;  // its stream has been open
    // While its stream is not open: no other process gets the seat until then.
    std::chrono::nanoseconds held_until = std::chrono::nanoseconds::min();
    std::chrono::nanoseconds away_since{0};  // likewise: when it was heard last
    std::string why_away;                    // likewise; told to the others
  };

  void WatchLease(uint32_t slot);
  // At the home of a durable job: says to `to` that the slot is away or back.
  void TellOfTrainer(uint32_t slot, SlotSink* to) const;
  LogField Run() const;  // for log lines

  JobStrand* const strand_;
  const RoundFsm* const fsm_;
  const Clock* const clock_;
  const EngineConfig config_;
  const NeverOpened never_opened_;

  std::vector<std::shared_ptr<SlotSink>> sinks_;  // per slot; null: no stream
  std::vector<Seat> seats_;                       // per slot
  RoundEngine::SeatFree on_seat_free_;
  bool expecting_ = false;
  bool opened_ = false;
  std::shared_ptr<JobMetrics> metrics_;  // null also after the job's end
  std::optional<RoundResult> last_result_;
  std::optional<RoundDone> last_done_;
};

}  // namespace ballast::server
