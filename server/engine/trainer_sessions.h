// TrainerSessions: the trainers of a job as one server sees them. Per slot of the epoch: its stream
// (in SlotSinks), and the seat of the process that holds the slot, with its lease.
// Comes from: TrainerStream (streams), HomeJobs (seats), RoundDriver. Goes to: RoundControl,
// SlotSinks, StateSender, the callback of OnSeatFree. Thread safety: TrainerCalls from any thread,
// the rest on the job's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/metrics/metrics.h"
#include "server/engine/round_control.h"
#include "server/engine/round_engine.h"
#include "server/engine/slot_sinks.h"
#include "server/engine/state_sender.h"
#include "server/round/job_strand.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"
#include "server/round/waiters.h"

namespace ballast::server {

class TrainerSessions final : public TrainerCalls {
 public:
  struct Deps {
    JobStrand* strand = nullptr;
    RoundControl* rounds = nullptr;
    const RoundFsm* fsm = nullptr;
    ModelState* state = nullptr;  // sent to trainers
    SlotSinks* sinks = nullptr;
    Waiters* waiters = nullptr;
    const Clock* clock = nullptr;
    EngineConfig config;
    std::shared_ptr<JobMetrics> metrics;  // the numbers of trainers; may be null
  };
  // All objects in `deps` outlive this. The seats are those of the FSM's epoch.
  explicit TrainerSessions(Deps deps);

  void ExpectSlots() override;
  void AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                  std::function<void(absl::StatusOr<SlotWelcome>)> done) override;
  void SlotLost(SlotLoss loss) override;
  void Leave(uint32_t slot, uint64_t incarnation) override;
  void FetchState(StateFetch fetch) override;
  void SlotOpen(uint32_t slot, std::function<void(SeatUse)> done) override;
  void StateOfSeat(uint32_t slot, std::function<void(SeatState)> done) override;
  void OnSeatFree(SeatFree callback) override;

  // The job begins. As RoundEngine's Start.
  void Start(bool restarted);
  // The slot may take no further part, and gets `status`; if it has a stream, that counts as lost.
  void Refuse(uint32_t slot, const absl::Status& status);
  // The FSM has left the epoch `before`: all streams end with STALE_EPOCH, and the seats are those
  // of the new epoch.
  void ChangeEpoch(const EpochRecord& before);
  // No seat becomes free any more: the job has ended.
  void End();

 private:
  // The process in a seat, apart from its stream.
  struct Seat {
    bool seen = false;  // its stream has been open
    // While its stream is not open: no other process gets the seat until then.
    std::chrono::nanoseconds held_until = std::chrono::nanoseconds::min();
    std::chrono::nanoseconds away_since{0};  // likewise: time of its last sign of life
    std::string why_away;                    // likewise; told to the others
  };
  struct Arrival {
    SlotHello hello;
    std::shared_ptr<SlotSink> sink;
    std::function<void(absl::StatusOr<SlotWelcome>)> done;
  };

  void Expect();
  void Attach(const Arrival& arrival);
  // Whether the process may open the slot's stream. Errors: STALE_EPOCH, FUTURE_EPOCH,
  // WRONG_INCARNATION, WRONG_VERSION.
  absl::Status CheckHello(const SlotHello& hello) const;
  // The slot's stream is `sink` from now on; an older stream ends. The others learn of the
  // trainer's return.
  void Open(uint32_t slot, std::shared_ptr<SlotSink> sink);
  // Tells the slot which of the others are away.
  void TellWhoIsAway(uint32_t slot) const;
  // At the home of a durable job: tells `to` that the slot is away or back.
  void TellOfTrainer(uint32_t slot, SlotSink* to) const;
  // Sends the whole result of the last round to a slot that missed its end.
  void SendLastRound(uint32_t slot);
  void Fetch(const StateFetch& fetch);
  // The seat is kept for its lease. The others learn of it.
  void Lose(uint32_t slot, const std::string& why, std::chrono::nanoseconds silent_for);
  void WatchLease(uint32_t slot);
  // The member has left, or its lease has run out: reports it through OnSeatFree, unless the job
  // needs this very process.
  void TellSeatFree(uint32_t slot);
  // Brings the metrics of the trainers up to date.
  void CountSeats() const;
  LogField Run() const;  // for log lines

  const Deps deps_;
  RoundControl* const rounds_;
  const RoundFsm* const fsm_;
  SlotSinks* const sinks_;
  StateSender sender_;

  std::vector<Seat> seats_;  // per slot
  SeatFree on_seat_free_;
  bool expecting_ = false;
  std::shared_ptr<JobMetrics> metrics_;  // null also after the job's end
};

}  // namespace ballast::server
