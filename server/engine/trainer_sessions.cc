#include "server/engine/audience.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"
#include "server/round/no_job.h"

namespace ballast::server {

Audience::Audience(JobStrand* strand, const RoundFsm* fsm, const Clock* clock,
                   const EngineConfig& config, NeverOpened never_opened,
                   std::shared_ptr<JobMetrics> metrics)
    : strand_(strand),
      fsm_(fsm),
      clock_(clock),
      config_(config),
      never_opened_(std::move(never_opened)),
      sinks_(fsm->plan().epoch.seats()),
      seats_(fsm->plan().epoch.seats()),
      metrics_(std::move(metrics)) {}

LogField Audience::Run() const { return LogField("run", fsm_->plan().spec.name); }

void Audience::Start(bool restarted) {
  const auto now = clock_->Now();
  for (const Member& member : fsm_->plan().epoch.members) {
    seats_[member.slot].away_since = now;
    if (restarted) seats_[member.slot].held_until = now + 2 * config_.return_wait;
    WatchLease(member.slot);
  }
  CountSeats();
}

void Audience::End() {
  on_seat_free_ = nullptr;
  CountSeats();
  if (metrics_ == nullptr) return;
  metrics_->trainers_active.Set(0);
  metrics_->trainers_unresponsive.Set(0);
  metrics_ = nullptr;  // Streams end later, when another job may have the name.
}

void Audience::CountSeats() const {
  if (metrics_ == nullptr) return;
  uint32_t active = 0, unresponsive = 0, left = 0;
  for (const Member& member : fsm_->plan().epoch.members) {
    const bool gone = fsm_->Left(member.slot);
    const bool open = sinks_[member.slot] != nullptr;
    ++(gone ? left : open ? active : unresponsive);
  }
  metrics_->trainers_active.Set(active);
  metrics_->trainers_unresponsive.Set(unresponsive);
  metrics_->trainers_left.Set(left);
}

// A trainer with a seat must open its stream soon, or the others would wait forever.
void Audience::Expect() {
  if (std::exchange(expecting_, true)) return;
  strand_->PostAfter(config_.open_timeout, [this] {
    for (const Member& member : fsm_->plan().epoch.members) {
      if (!seats_[member.slot].seen) never_opened_(member.slot);
    }
  });
}

SeatUse Audience::UseOf(uint32_t slot) const {
  return {.open = slot < sinks_.size() &&
                  (sinks_[slot] != nullptr || clock_->Now() < seats_[slot].held_until),
          .anybody = open_streams() != 0};
}

uint32_t Audience::open_streams() const {
  return static_cast<uint32_t>(std::count_if(sinks_.begin(), sinks_.end(),
                                             [](const auto& sink) { return sink != nullptr; }));
}

const std::shared_ptr<SlotSink>& Audience::Sink(uint32_t slot) const {
  static const std::shared_ptr<SlotSink> kNone;
  return slot < sinks_.size() ? sinks_[slot] : kNone;
}

// --- Streams ------------------------------------------------------------------------------------

absl::Status Audience::CheckHello(const SlotHello& hello) const {
  if (!hello.caller.Sees(fsm_->plan().tenant)) return NoJobHere(fsm_->plan().job);
  const EpochRecord& epoch = fsm_->plan().epoch;
  const std::string& job = fsm_->plan().spec.name;
  const ErrorFields fields{
      .job = job, .round = fsm_->round(), .slot = static_cast<int>(hello.slot)};
  const auto refuse = [&fields](Reason reason, const std::string& message) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, reason, message, fields);
  };
  if (hello.epoch != epoch.epoch) {
    return refuse(
        hello.epoch < epoch.epoch ? Reason::kStaleEpoch : Reason::kFutureEpoch,
        absl::StrCat("stream of epoch ", hello.epoch, ", the job is in epoch ", epoch.epoch));
  }
  const auto taken = [&](uint32_t slot) {
    return fsm_->durable() ? !fsm_->MayReturn(slot) : sinks_[slot] != nullptr || fsm_->Gone(slot);
  };
  const bool holds = BALLAST_MUTANT(kNoIncarnation) ? epoch.Find(hello.slot) != nullptr
                                                    : epoch.Holds(hello.slot, hello.incarnation);
  const Member* const member = epoch.Find(hello.slot);
  const bool belongs = member == nullptr || member->BelongsTo(hello.caller);
  if (!holds || !belongs || taken(hello.slot)) {
    return refuse(Reason::kWrongIncarnation, absl::StrCat("slot ", hello.slot, " of job \"", job,
                                                          "\" is not this process'; attach again"));
  }
  const bool version_known = hello.round == 0 || hello.round == fsm_->round() ||
                             (last_result_.has_value() && hello.round + 1 == fsm_->round());
  if (version_known) return absl::OkStatus();
  return refuse(Reason::kWrongVersion,
                absl::StrCat("slot ", hello.slot, " holds version ", hello.round, ", server ",
                             config_.self, " is at version ", fsm_->round(),
                             "; was its data directory replaced or rolled back?"));
}

void Audience::Open(uint32_t slot, std::shared_ptr<SlotSink> sink) {
  if (sinks_[slot] != nullptr) {
    sinks_[slot]->OnError(ReasonedError(absl::StatusCode::kAborted, Reason::kWrongIncarnation,
                                        "a newer stream took this one's place"));
  }
  sinks_[slot] = std::move(sink);
  opened_ = true;
  Seat& seat = seats_[slot];
  seat.held_until = std::chrono::nanoseconds::min();
  const bool was_told = !std::exchange(seat.why_away, "").empty();
  for (uint32_t other = 0; other < sinks_.size(); ++other) {
    if (was_told && other != slot) TellOfTrainer(slot, sinks_[other].get());
  }
  if (std::exchange(seat.seen, true)) {
    BALLAST_LOG(INFO, Run(), LogField("slot", slot)) << "trainer is back";
  }
  CountSeats();
  Expect();  // The others know their seats, too.
}

void Audience::TellWhoIsAway(uint32_t slot) const {
  for (uint32_t other = 0; other < seats_.size(); ++other) {
    if (!seats_[other].why_away.empty()) TellOfTrainer(other, sinks_[slot].get());
  }
}

void Audience::Lose(uint32_t slot, const std::string& why, std::chrono::nanoseconds silent_for) {
  sinks_[slot] = nullptr;
  Seat& seat = seats_[slot];
  seat.away_since = clock_->Now() - silent_for;
  if (silent_for.count() > 0) seat.held_until = seat.away_since + config_.lease;
  BALLAST_LOG(WARN, Run(), LogField("slot", slot)) << "trainer lost: " << why;
  seat.why_away = why;
  for (const auto& sink : sinks_) TellOfTrainer(slot, sink.get());
  CountSeats();
  WatchLease(slot);
}

void Audience::Refuse(uint32_t slot, const absl::Status& status) {
  if (sinks_[slot] == nullptr) return;
  sinks_[slot]->OnError(status);
  Lose(slot, std::string(status.message()), std::chrono::nanoseconds(0));
}

void Audience::Close(uint32_t slot, const absl::Status& status) {
  if (sinks_[slot] != nullptr && !status.ok()) sinks_[slot]->OnError(status);
  sinks_[slot] = nullptr;
}

void Audience::TellOfTrainer(uint32_t slot, SlotSink* to) const {
  if (to == nullptr || !fsm_->durable() || config_.self != fsm_->plan().servers.front()) return;
  const Seat& seat = seats_[slot];
  const auto left = seat.away_since + config_.lease - clock_->Now();
  TrainerNews news{.slot = slot, .away = sinks_[slot] == nullptr, .why = seat.why_away};
  if (news.away && left.count() > 0) {
    news.lease_left_ms =
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  }
  to->OnTrainer(news);
}

// Checks at the end of the lease whether the slot is still away.
void Audience::WatchLease(uint32_t slot) {
  if (!on_seat_free_ || slot >= seats_.size()) return;
  const auto since = seats_[slot].away_since;
  const auto left = since + config_.lease - clock_->Now();
  strand_->PostAfter(std::max(left, std::chrono::nanoseconds(0)), [this, slot, since] {
    if (slot >= seats_.size()) return;
    if (sinks_[slot] == nullptr && seats_[slot].away_since == since) TellSeatFree(slot);
  });
}

void Audience::TellSeatFree(uint32_t slot) {
  const Member* const member = fsm_->plan().epoch.Find(slot);
  if (member == nullptr || !on_seat_free_) return;
  if (fsm_->InitIsFresh() && slot == fsm_->plan().epoch.lead_trainer()) {
    // No other process can upload initial weights; the lease is checked again later.
    strand_->PostAfter(config_.lease, [this, slot] { WatchLease(slot); });
    return;
  }
  on_seat_free_(slot, member->incarnation, fsm_->Left(slot));
}

void Audience::ChangeEpoch(const EpochRecord& before) {
  const EpochRecord& epoch = fsm_->plan().epoch;
  const auto now = clock_->Now();
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (sinks_[slot] == nullptr) continue;
    Close(slot, ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                              absl::StrCat("job \"", fsm_->plan().spec.name, "\" is in epoch ",
                                           epoch.epoch, "; attach again"),
                              {.job = fsm_->plan().spec.name, .round = fsm_->round()}));
    seats_[slot].away_since = now;
    seats_[slot].held_until = now + config_.return_wait;
  }
  sinks_.resize(epoch.seats());
  seats_.resize(epoch.seats());
  const auto is_new = [&before](const Member& member) {
    return !before.Holds(member.slot, member.incarnation);
  };
  // A newcomer renews the lease of every absent trainer: after a restart of the whole world its
  // trainers do not arrive all at once.
  const bool newcomers = std::any_of(epoch.members.begin(), epoch.members.end(), is_new);
  for (const Member& member : epoch.members) {
    if (is_new(member)) seats_[member.slot] = Seat();
    if (newcomers) seats_[member.slot].away_since = now;
    WatchLease(member.slot);
  }
  CountSeats();
}

// --- Messages to trainers -----------------------------------------------------------------------

void Audience::TellResult(const RoundResult& result, const WeightBytes& weight_bytes) {
  last_result_ = result;
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (sinks_[slot] == nullptr) continue;
    RoundResult told = result;
    told.weight_bytes = weight_bytes(slot);
    sinks_[slot]->OnResult(told);
  }
}

void Audience::TellDone(const RoundDone& done) {
  last_done_ = done;
  BALLAST_FAILPOINT("round.before_tell");
  Each([&](SlotSink* sink) { sink->OnDone(done); });
  BALLAST_FAILPOINT("round.after_tell");
}

void Audience::Remember(const RoundResult& result, const RoundDone& done) {
  last_result_ = result;
  last_done_ = done;
}

}  // namespace ballast::server
