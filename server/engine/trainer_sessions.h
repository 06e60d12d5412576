// Audience: the trainers of a job as one server sees them. Per slot of the epoch: the sink of the
// open stream, and the seat of the process that holds the slot, with its lease; and the newest
// finished round, for trainers that missed its end.
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

  // All pointers outlive this. The seats are those of the FSM's epoch. `metrics` gets the numbers
  // of trainers, and may be null.
  Audience(JobStrand* strand, const RoundFsm* fsm, const Clock* clock, const EngineConfig& config,
           NeverOpened never_opened, std::shared_ptr<JobMetrics> metrics);

  // The job begins. As RoundEngine's Start, ExpectSlots, OnSeatFree and SlotOpen.
  void Start(bool restarted);
  void Expect();
  void OnSeatFree(RoundEngine::SeatFree callback) { on_seat_free_ = std::move(callback); }
  SeatUse UseOf(uint32_t slot) const;
  // No seat becomes free any more: the job has ended.
  void End();
  // Brings the metrics of the trainers up to date, after the FSM has taken a trainer's Leave.
  void CountSeats() const;

  // --- Streams ----------------------------------------------------------------------------------
  // Whether the process may open the slot's stream. Errors: STALE_EPOCH, FUTURE_EPOCH,
  // WRONG_INCARNATION, WRONG_VERSION.
  absl::Status CheckHello(const SlotHello& hello) const;
  // The slot's stream is `sink` from now on; an older stream ends. The others learn of the
  // trainer's return.
  void Open(uint32_t slot, std::shared_ptr<SlotSink> sink);
  // Tells the slot which of the others are away.
  void TellWhoIsAway(uint32_t slot) const;
  // The stream broke, or was silent for `silent_for`: the seat is kept for its lease. The others
  // learn of it.
  void Lose(uint32_t slot, const std::string& why, std::chrono::nanoseconds silent_for);
  // The slot may take no further part, and gets `status`; if it has a stream, the rest is as Lose.
  void Refuse(uint32_t slot, const absl::Status& status);
  // The stream ends for good; `status` goes to the trainer if it is an error.
  void Close(uint32_t slot, const absl::Status& status);
  // The member has left, or its lease has run out: reports it through OnSeatFree, unless the job
  // needs this very process.
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

  // --- Messages to trainers ---------------------------------------------------------------------
  // Calls `say` with every open stream, by slot.
  template <typename Say>
  void Each(Say say) const {
    for (const auto& sink : sinks_) {
      if (sink != nullptr) say(sink.get());
    }
  }
  // `weight_bytes` gives the bytes of weights that follow to each slot.
  using WeightBytes = std::function<uint64_t(uint32_t slot)>;
  void TellResult(const RoundResult& result, const WeightBytes& weight_bytes);
  void TellDone(const RoundDone& done);
  // After a restart: restores the last messages.
  void Remember(const RoundResult& result, const RoundDone& done);
  // Of the newest finished round; nothing before the first.
  const std::optional<RoundResult>& last_result() const { return last_result_; }
  const std::optional<RoundDone>& last_done() const { return last_done_; }

 private:
  // The process in a seat, apart from its stream.
  struct Seat {
    bool seen = false;  // its stream has been open
    // While its stream is not open: no other process gets the seat until then.
    std::chrono::nanoseconds held_until = std::chrono::nanoseconds::min();
    std::chrono::nanoseconds away_since{0};  // likewise: time of its last sign of life
    std::string why_away;                    // likewise; told to the others
  };

  void WatchLease(uint32_t slot);
  // At the home of a durable job: tells `to` that the slot is away or back.
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
