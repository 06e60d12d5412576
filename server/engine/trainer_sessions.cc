#include "server/engine/trainer_sessions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/faults/mutant.h"
#include "server/round/no_job.h"
#include "server/round/policy_report.h"

namespace ballast::server {

TrainerSessions::TrainerSessions(Deps deps)
    : deps_(std::move(deps)),
      rounds_(deps_.rounds),
      fsm_(deps_.fsm),
      sinks_(deps_.sinks),
      sender_(deps_.strand, deps_.fsm, deps_.state, deps_.sinks, deps_.rounds),
      seats_(deps_.fsm->plan().epoch.seats()),
      metrics_(deps_.metrics) {}

LogField TrainerSessions::Run() const { return LogField("run", fsm_->plan().spec.name); }

void TrainerSessions::Start(bool restarted) {
  const auto now = deps_.clock->Now();
  for (const Member& member : fsm_->plan().epoch.members) {
    seats_[member.slot].away_since = now;
    if (restarted) seats_[member.slot].held_until = now + 2 * deps_.config.return_wait;
    WatchLease(member.slot);
  }
  CountSeats();
}

void TrainerSessions::End() {
  on_seat_free_ = nullptr;
  CountSeats();
  if (metrics_ == nullptr) return;
  metrics_->trainers_active.Set(0);
  metrics_->trainers_unresponsive.Set(0);
  metrics_ = nullptr;  // Streams end later, when another job may have the name.
}

void TrainerSessions::CountSeats() const {
  if (metrics_ == nullptr) return;
  uint32_t active = 0, unresponsive = 0, left = 0;
  for (const Member& member : fsm_->plan().epoch.members) {
    const bool gone = fsm_->Left(member.slot);
    const bool open = sinks_->Has(member.slot);
    ++(gone ? left : open ? active : unresponsive);
  }
  metrics_->trainers_active.Set(active);
  metrics_->trainers_unresponsive.Set(unresponsive);
  metrics_->trainers_left.Set(left);
}

// --- Seats --------------------------------------------------------------------------------------

void TrainerSessions::ExpectSlots() {
  deps_.strand->Post([this] { Expect(); });
}

// A trainer with a seat must open its stream soon, or the others would wait forever.
void TrainerSessions::Expect() {
  if (std::exchange(expecting_, true)) return;
  deps_.strand->PostAfter(deps_.config.open_timeout, [this] {
    for (const Member& member : fsm_->plan().epoch.members) {
      if (seats_[member.slot].seen) continue;
      rounds_->Feed(SlotLostInput{member.slot, "it never opened its stream"});
    }
  });
}

void TrainerSessions::SlotOpen(uint32_t slot, std::function<void(SeatUse)> done) {
  deps_.strand->Post([this, slot, done = std::move(done)] {
    const bool in_use =
        slot < seats_.size() && (sinks_->Has(slot) || deps_.clock->Now() < seats_[slot].held_until);
    done({.open = in_use, .anybody = sinks_->open_streams() != 0});
  });
}

void TrainerSessions::StateOfSeat(uint32_t slot, std::function<void(SeatState)> done) {
  deps_.strand->Post([this, slot, done = std::move(done)] {
    done({fsm_->UserState(slot), PolicyReportOf(fsm_->policy(), rounds_->last_decision())});
  });
}

void TrainerSessions::OnSeatFree(SeatFree callback) {
  deps_.strand->Post([this, callback = std::move(callback)] { on_seat_free_ = callback; });
}

// --- Streams ------------------------------------------------------------------------------------

void TrainerSessions::AttachSlot(const SlotHello& hello, std::shared_ptr<SlotSink> sink,
                                 std::function<void(absl::StatusOr<SlotWelcome>)> done) {
  deps_.strand->Post(
      [this, arrival = Arrival{hello, std::move(sink), std::move(done)}] { Attach(arrival); });
}

void TrainerSessions::Attach(const Arrival& arrival) {
  const SlotHello& hello = arrival.hello;
  // While a round is applied, part of its weights went out already: all of them go out at its end.
  // Or the slot has seen the round's end elsewhere, and this server is about to learn of it.
  const Phase phase = fsm_->phase();
  const bool prepared = phase == Phase::kPreparing || phase == Phase::kPrepared;
  const bool waits = phase == Phase::kApplying || (prepared && hello.round == fsm_->round() + 1);
  if (fsm_->durable() && waits && !BALLAST_MUTANT(kAttachWhileApplying)) {
    BALLAST_PROBE(kAttachWaits);
    deps_.waiters->Add(Waiters::kApplied, [this, arrival] { Attach(arrival); });
    return;
  }
  if (!rounds_->failure().ok()) return arrival.done(rounds_->failure());
  if (absl::Status status = CheckHello(hello); !status.ok()) return arrival.done(status);
  Open(hello.slot, arrival.sink);
  rounds_->Feed(SlotBackInput{hello.slot});
  SlotWelcome welcome{.round = fsm_->round(), .durable = fsm_->durable()};
  if (fsm_->durable()) {
    welcome.complete = fsm_->CompleteFor(hello.slot);
    welcome.init_missing = fsm_->InitMissing();
  }
  arrival.done(welcome);
  TellWhoIsAway(hello.slot);
  // A returning slot has to learn the position of the window.
  if (fsm_->durable()) arrival.sink->OnAck(MakeAck(*fsm_, *rounds_->log(), true));
  if (hello.round != 0 && hello.round + 1 == fsm_->round()) SendLastRound(hello.slot);
}

absl::Status TrainerSessions::CheckHello(const SlotHello& hello) const {
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
    return fsm_->durable() ? !fsm_->MayReturn(slot) : sinks_->Has(slot) || fsm_->Gone(slot);
  };
  const bool holds = BALLAST_MUTANT(kNoIncarnation) ? epoch.Find(hello.slot) != nullptr
                                                    : epoch.Holds(hello.slot, hello.incarnation);
  const Member* const member = epoch.Find(hello.slot);
  const bool belongs = member == nullptr || member->BelongsTo(hello.caller);
  if (!holds || !belongs || taken(hello.slot)) {
    return refuse(Reason::kWrongIncarnation, absl::StrCat("slot ", hello.slot, " of job \"", job,
                                                          "\" is not this process'; attach again"));
  }
  const bool version_known =
      hello.round == 0 || hello.round == fsm_->round() ||
      (sinks_->last_result().has_value() && hello.round + 1 == fsm_->round());
  if (version_known) return absl::OkStatus();
  return refuse(Reason::kWrongVersion,
                absl::StrCat("slot ", hello.slot, " holds version ", hello.round, ", server ",
                             deps_.config.self, " is at version ", fsm_->round(),
                             "; was its data directory replaced or rolled back?"));
}

void TrainerSessions::Open(uint32_t slot, std::shared_ptr<SlotSink> sink) {
  if (sinks_->Has(slot)) {
    sinks_->Sink(slot)->OnError(ReasonedError(absl::StatusCode::kAborted, Reason::kWrongIncarnation,
                                              "a newer stream took this one's place"));
  }
  sinks_->Set(slot, std::move(sink));
  Seat& seat = seats_[slot];
  seat.held_until = std::chrono::nanoseconds::min();
  const bool was_told = !std::exchange(seat.why_away, "").empty();
  for (uint32_t other = 0; other < sinks_->slots(); ++other) {
    if (was_told && other != slot) TellOfTrainer(slot, sinks_->Sink(other).get());
  }
  if (std::exchange(seat.seen, true)) {
    BALLAST_LOG(INFO, Run(), LogField("slot", slot)) << "trainer is back";
  }
  CountSeats();
  Expect();  // The others know their seats, too.
}

void TrainerSessions::TellWhoIsAway(uint32_t slot) const {
  for (uint32_t other = 0; other < seats_.size(); ++other) {
    if (!seats_[other].why_away.empty()) TellOfTrainer(other, sinks_->Sink(slot).get());
  }
}

void TrainerSessions::SlotLost(SlotLoss loss) {
  deps_.strand->Post([this, loss = std::move(loss)] {
    // A newer stream of the slot is not lost with the one that it replaced.
    if (!sinks_->Has(loss.slot) || sinks_->Sink(loss.slot).get() != loss.sink) return;
    Lose(loss.slot, loss.why, loss.silent_for);
    rounds_->Feed(SlotLostInput{loss.slot, loss.why});
  });
}

void TrainerSessions::Lose(uint32_t slot, const std::string& why,
                           std::chrono::nanoseconds silent_for) {
  sinks_->Set(slot, nullptr);
  Seat& seat = seats_[slot];
  seat.away_since = deps_.clock->Now() - silent_for;
  if (silent_for.count() > 0) seat.held_until = seat.away_since + deps_.config.lease;
  BALLAST_LOG(WARN, Run(), LogField("slot", slot)) << "trainer lost: " << why;
  seat.why_away = why;
  sinks_->Each([this, slot](SlotSink* sink) { TellOfTrainer(slot, sink); });
  CountSeats();
  WatchLease(slot);
}

void TrainerSessions::Refuse(uint32_t slot, const absl::Status& status) {
  if (!sinks_->Has(slot)) return;
  sinks_->Sink(slot)->OnError(status);
  Lose(slot, std::string(status.message()), std::chrono::nanoseconds(0));
}

void TrainerSessions::Leave(uint32_t slot, uint64_t incarnation) {
  deps_.strand->Post([this, slot, incarnation] {
    // Its stream may have been closed by a new epoch meanwhile.
    if (!fsm_->plan().epoch.Holds(slot, incarnation)) return;
    sinks_->Set(slot, nullptr);
    rounds_->Feed(SlotLeftInput{slot});
    CountSeats();
    TellSeatFree(slot);
  });
}

void TrainerSessions::TellOfTrainer(uint32_t slot, SlotSink* to) const {
  if (to == nullptr || !fsm_->durable() || deps_.config.self != fsm_->plan().servers.front())
    return;
  const Seat& seat = seats_[slot];
  const auto left = seat.away_since + deps_.config.lease - deps_.clock->Now();
  TrainerNews news{.slot = slot, .away = !sinks_->Has(slot), .why = seat.why_away};
  if (news.away && left.count() > 0) {
    news.lease_left_ms =
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  }
  to->OnTrainer(news);
}

// Checks at the end of the lease whether the slot is still away.
void TrainerSessions::WatchLease(uint32_t slot) {
  if (!on_seat_free_ || slot >= seats_.size()) return;
  const auto since = seats_[slot].away_since;
  const auto left = since + deps_.config.lease - deps_.clock->Now();
  deps_.strand->PostAfter(std::max(left, std::chrono::nanoseconds(0)), [this, slot, since] {
    if (slot >= seats_.size()) return;
    if (!sinks_->Has(slot) && seats_[slot].away_since == since) TellSeatFree(slot);
  });
}

void TrainerSessions::TellSeatFree(uint32_t slot) {
  const Member* const member = fsm_->plan().epoch.Find(slot);
  if (member == nullptr || !on_seat_free_) return;
  if (fsm_->InitIsFresh() && slot == fsm_->plan().epoch.lead_trainer()) {
    // No other process can upload initial weights; the lease is checked again later.
    deps_.strand->PostAfter(deps_.config.lease, [this, slot] { WatchLease(slot); });
    return;
  }
  on_seat_free_(slot, member->incarnation, fsm_->Left(slot));
}

void TrainerSessions::ChangeEpoch(const EpochRecord& before) {
  const EpochRecord& epoch = fsm_->plan().epoch;
  const auto now = deps_.clock->Now();
  for (uint32_t slot = 0; slot < sinks_->slots(); ++slot) {
    if (!sinks_->Has(slot)) continue;
    sinks_->Sink(slot)->OnError(
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
                      absl::StrCat("job \"", fsm_->plan().spec.name, "\" is in epoch ", epoch.epoch,
                                   "; attach again"),
                      {.job = fsm_->plan().spec.name, .round = fsm_->round()}));
    sinks_->Set(slot, nullptr);
    seats_[slot].away_since = now;
    seats_[slot].held_until = now + deps_.config.return_wait;
  }
  sinks_->Resize(epoch.seats());
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

// --- State for one trainer ----------------------------------------------------------------------

void TrainerSessions::SendLastRound(uint32_t slot) {
  SlotSink* const sink = sinks_->Sink(slot).get();
  RoundResult result = *sinks_->last_result();
  const RoundDone done = *sinks_->last_done();
  result.weight_bytes = 0;  // The first result counted only stepped extents; now all come.
  for (const uint32_t extent : fsm_->owned()) {
    if (result.applied) result.weight_bytes += fsm_->layout().ExtentWireBytes(extent);
  }
  sink->OnResult(result);
  if (!result.applied) {
    sink->OnDone(done);
    return;
  }
  sender_.Send({.slot = slot,
                .round = fsm_->round(),
                .weights = true,
                .extents = {fsm_->owned().rbegin(), fsm_->owned().rend()},
                .end = [sink, done] { sink->OnDone(done); }});
}

void TrainerSessions::FetchState(StateFetch fetch) {
  deps_.strand->Post([this, fetch = std::move(fetch)] { Fetch(fetch); });
}

void TrainerSessions::Fetch(const StateFetch& fetch) {
  const uint32_t slot = fetch.slot;
  if (!sinks_->Has(slot)) return;
  const std::shared_ptr<SlotSink> sink = sinks_->Sink(slot);
  if (fsm_->init_missing() != 0 && fetch.round == fsm_->round()) {
    deps_.waiters->Add(Waiters::kInitial, [this, fetch, sink] {
      // Not for a newer stream of the slot, which asks for itself.
      if (sinks_->Sink(fetch.slot) == sink) Fetch(fetch);
    });
    return;
  }
  // After the slot's begin the round could be applied while the state is on its way out.
  const bool readable =
      (fsm_->phase() == Phase::kIdle || fsm_->phase() == Phase::kCollect) && !fsm_->Begun(slot);
  const uint32_t held = StateArrayCount(fsm_->plan().spec);
  const bool known = std::all_of(fetch.arrays.begin(), fetch.arrays.end(),
                                 [held](uint32_t array) { return array < held; });
  if (!readable || fetch.round != fsm_->round() || !known) {
    sink->OnError(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
        absl::StrCat("state of version ", fetch.round, " was asked for; the job is at version ",
                     fsm_->round(), " (", PhaseName(fsm_->phase()), ") with ", held,
                     " state arrays"),
        {.job = fsm_->plan().spec.name, .round = fsm_->round(), .slot = static_cast<int>(slot)}));
    return;
  }
  StateInfo info{.round = fetch.round, .tensor_step = fsm_->tensor_steps()};
  info.opt_step = fsm_->policy().opt_step;
  for (const uint32_t extent : fsm_->owned()) {
    if (fetch.weights) info.bytes += fsm_->layout().ExtentWireBytes(extent);
    info.bytes += fsm_->layout().extents()[extent].elements * sizeof(float) * fetch.arrays.size();
  }
  info.policy = PolicyReportOf(fsm_->policy(), rounds_->last_decision());
  sink->OnState(info);
  sender_.Send({.slot = slot,
                .round = fetch.round,
                .weights = fetch.weights,
                .arrays = fetch.arrays,
                .extents = fsm_->owned()});
}

}  // namespace ballast::server
