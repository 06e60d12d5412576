// SimEngine: slots that come and go, and what goes to disk. See engine.h; the mirror of
// server/round/engine_slots.cc and engine_storage.cc.
// Thread safety: one thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/job/optimizer.h"
#include "tests/sim/engine.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

namespace {

constexpr Tick kOpenTimeout = 10 * kSecond;
constexpr Tick kReturnWait = 2500 * kMillisecond;

}  // namespace

void SimEngine::Resume(Recovered recovered) {
  log_->OnShortOfRoom([this] { After(0, EventKind::kStrand, [this] { PumpCheckpoints(); }); });
  ahead_.insert(recovered.ahead.begin(), recovered.ahead.end());
  for (const auto& [extent, logged] : recovered.open_extents) has_gradient_.insert(extent);
  if (recovered.last_decision.has_value()) {
    const DecisionRecord& last = *recovered.last_decision;
    last_result_ = ResultOf(last.round, last.decision);
    last_done_ = RoundDone{.round = last.round};
  }
  fsm_.Restore(recovered.fsm, &start_effects_);
}

void SimEngine::Start(bool restarted) {
  CarryOut(std::exchange(start_effects_, {}));
  if (!Alive()) return;
  for (const Member& member : fsm_.plan().epoch.members) {
    seats_[member.slot].away_since = deps_.world->now();
    if (restarted) seats_[member.slot].held_until = deps_.world->now() + 2 * kReturnWait;
    WatchLease(member.slot);
  }
  deps_.world->AfterInLife(kOpenTimeout, deps_.node, life_, EventKind::kTimer, [this] {
    const std::vector<Member> members = fsm_.plan().epoch.members;
    for (const Member& member : members) {
      if (seats_[member.slot].seen) continue;
      Feed(SlotLostInput{member.slot, "it never opened its stream"});
    }
  });
}

// --- Epochs -------------------------------------------------------------------------------------

void SimEngine::Seal(uint32_t epoch, const std::function<absl::Status(const JobPlan&)>& save,
                     const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  if (!failure_.ok()) return done(failure_);
  const uint32_t ours = fsm_.plan().epoch.epoch;
  if (epoch != ours) {
    return done(ReasonedError(absl::StatusCode::kFailedPrecondition,
                              epoch < ours ? Reason::kStaleEpoch : Reason::kFutureEpoch,
                              absl::StrCat("seal of epoch ", epoch, ", the server is in ", ours)));
  }
  if (!Is(Mutant::kPrepareSealed)) Feed(SealInput{});
  std::optional<SealAnswer> answer = fsm_.Sealed();
  if (Is(Mutant::kPrepareSealed)) answer = SealAnswer{fsm_.round(), false};
  if (!answer.has_value()) {
    deps_.world->Met(Cover::kSealWaits);
    after_durable_.push_back([=, this] { Seal(epoch, save, done); });
    return;
  }
  if (Is(Mutant::kForgetPrepared)) answer->prepared = false;
  JobPlan sealed = fsm_.plan();
  sealed.sealed_epoch = Is(Mutant::kSealNotSaved) ? 0 : epoch;
  const absl::Status saved = save(sealed);
  if (!Alive()) return;
  if (!saved.ok()) {
    done(saved);
    deps_.storage_failed(saved);
    return;
  }
  done(*answer);
}

void SimEngine::Adopt(const JobPlan& plan, const std::function<absl::Status()>& save,
                      const std::function<void(absl::Status)>& done) {
  if (!failure_.ok() || plan.epoch.epoch <= fsm_.plan().epoch.epoch) return done(failure_);
  if (fsm_.round() < plan.epoch.start_round) {
    deps_.world->Met(Cover::kAdoptWaits);
    after_apply_.push_back([=, this] { Adopt(plan, save, done); });
    return;
  }
  if (Is(Mutant::kAdoptUnflushed)) return AdoptFlushed(plan, save, done);
  log_->EndEpoch(plan.epoch.start_round, [=, this](const absl::Status& status) {
    if (!Alive()) return;
    if (status.ok()) {
      AdoptFlushed(plan, save, done);
    } else {
      deps_.storage_failed(status);
    }
  });
}

void SimEngine::AdoptFlushed(const JobPlan& plan, const std::function<absl::Status()>& save,
                             const std::function<void(absl::Status)>& done) {
  const EpochRecord before = fsm_.plan().epoch;
  if (!failure_.ok() || plan.epoch.epoch <= before.epoch) return done(failure_);
  if (reducing_ != 0) {
    after_reduce_.push_back([=, this] { AdoptFlushed(plan, save, done); });
    return;
  }
  const absl::Status saved = save();
  if (!Alive()) return;
  if (!saved.ok()) {
    deps_.storage_failed(saved);
    return;
  }
  if (plan.servers.front() == deps_.server_id) deps_.oracle->OnEpoch(plan.epoch);
  deps_.oracle->OnAdopted(deps_.server_id, plan.epoch, deps_.damaged);
  JobPlan as_seen = plan;
  if (Is(Mutant::kOldDivisor)) {
    for (ContributorSet& set : as_seen.epoch.contributors) set.divisor = before.world();
  }
  Effects effects;
  const absl::Status adopted = fsm_.Adopt(as_seen, deps_.window_extents, &effects);
  if (adopted.ok()) {
    GoOver(before);
    CarryOut(effects);
  }
  if (Alive()) done(adopted);
}

void SimEngine::GoOver(const EpochRecord& before) {
  const EpochRecord& epoch = fsm_.plan().epoch;
  log_->BeginEpoch(epoch.epoch, epoch.start_round);
  if (deps_.world->tracing()) {
    deps_.world->Trace(deps_.node,
                       absl::StrCat("epoch ", epoch.epoch, " from round ", epoch.start_round, ", ",
                                    epoch.world(), " of ", before.world(), " trainers"));
  }
  deps_.world->Met(epoch.world() == before.world() ? Cover::kReplaced : Cover::kOtherWorld);
  if (epoch.init_again) deps_.world->Met(Cover::kInitDropped);
  contributions_.ReleaseAll();
  arrivals_.clear();
  has_gradient_.clear();
  prepare_waiting_.reset();
  ahead_.clear();
  if (epoch.init_again) checkpointer_.DropInitial();
  const Tick now = deps_.world->now();
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (sinks_[slot] == nullptr) continue;
    sinks_[slot]->OnError(
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch, "attach again"));
    sinks_[slot] = nullptr;
    seats_[slot].away_since = now;
    seats_[slot].held_until = now + kReturnWait;
  }
  sinks_.resize(epoch.seats());
  seats_.resize(epoch.seats());
  const auto is_new = [&before](const Member& member) {
    return !before.Holds(member.slot, member.incarnation);
  };
  const bool newcomers = std::any_of(epoch.members.begin(), epoch.members.end(), is_new);
  for (const Member& member : epoch.members) {
    if (is_new(member)) seats_[member.slot] = Seat();
    if (newcomers) seats_[member.slot].away_since = now;
    WatchLease(member.slot);
  }
  absl::StatusOr<Contributions> made =
      Contributions::Create(fsm_.layout(), fsm_.owned().size(), epoch, deps_.window_extents);
  if (made.ok()) contributions_ = *std::move(made);
}

bool SimEngine::SlotOpen(uint32_t slot) const {
  return slot < sinks_.size() &&
         (sinks_[slot] != nullptr || deps_.world->now() < seats_[slot].held_until);
}

void SimEngine::WatchLease(uint32_t slot) {
  if (!on_seat_free_ || ended_ || slot >= seats_.size()) return;
  const Tick since = seats_[slot].away_since, now = deps_.world->now();
  const Tick left = since + kLease > now ? since + kLease - now : 0;
  deps_.world->AfterInLife(left, deps_.node, life_, EventKind::kTimer, [this, slot, since] {
    if (slot >= seats_.size()) return;
    if (sinks_[slot] == nullptr && seats_[slot].away_since == since) TellSeatFree(slot);
  });
}

void SimEngine::TellSeatFree(uint32_t slot) {
  const Member* const member = fsm_.plan().epoch.Find(slot);
  if (member == nullptr || !on_seat_free_ || ended_) return;
  if (fsm_.round() == 1 && slot == fsm_.plan().epoch.lead()) {
    After(kLease, EventKind::kTimer, [this, slot] { WatchLease(slot); });
    return;
  }
  on_seat_free_(slot, member->incarnation, fsm_.Left(slot));
}

// --- Slots --------------------------------------------------------------------------------------

absl::Status SimEngine::CheckAttach(const SlotHello& hello) const {
  ErrorFields fields{.round = fsm_.round(), .slot = static_cast<int>(hello.slot)};
  const auto refuse = [&fields](Reason reason, const std::string& message) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, reason, message, fields);
  };
  if (!failure_.ok()) return failure_;
  if (hello.epoch != fsm_.plan().epoch.epoch) {
    return refuse(
        hello.epoch < fsm_.plan().epoch.epoch ? Reason::kStaleEpoch : Reason::kFutureEpoch,
        absl::StrCat("stream of epoch ", hello.epoch));
  }
  const EpochRecord& epoch = fsm_.plan().epoch;
  const bool member = Is(Mutant::kNoIncarnation) ? epoch.Find(hello.slot) != nullptr
                                                 : epoch.Holds(hello.slot, hello.incarnation);
  if (!member || !fsm_.MayReturn(hello.slot)) {
    return refuse(Reason::kWrongIncarnation, "the slot is held by another process");
  }
  const bool version_known = hello.round == 0 || hello.round == fsm_.round() ||
                             (last_result_.has_value() && hello.round + 1 == fsm_.round());
  if (version_known) return absl::OkStatus();
  return refuse(Reason::kWrongVersion,
                absl::StrCat("slot ", hello.slot, " holds version ", hello.round, ", server ",
                             deps_.server_id, " is at version ", fsm_.round()));
}

void SimEngine::AttachSlot(const SlotHello& hello, const SinkPtr& sink, const Attached& done) {
  const bool prepared = fsm_.phase() == Phase::kPreparing || fsm_.phase() == Phase::kPrepared;
  const bool waits =
      fsm_.phase() == Phase::kApplying || (prepared && hello.round == fsm_.round() + 1);
  if (waits && !Is(Mutant::kAttachWhileApplying)) {
    deps_.world->Met(Cover::kAttachWaits);
    after_apply_.push_back([=, this] { AttachSlot(hello, sink, done); });
    return;
  }
  if (absl::Status status = CheckAttach(hello); !status.ok()) {
    done(status);
    return;
  }
  if (!fsm_.plan().epoch.Holds(hello.slot, hello.incarnation)) {
    return deps_.world->Red("a process that is no member gets a stream");
  }
  if (sinks_[hello.slot] != nullptr) {
    sinks_[hello.slot]->OnError(ReasonedError(absl::StatusCode::kAborted, Reason::kWrongIncarnation,
                                              "a newer stream took this one's place"));
  }
  sinks_[hello.slot] = sink;
  seats_[hello.slot].seen = true;
  seats_[hello.slot].held_until = 0;
  Feed(SlotBackInput{hello.slot});
  done(SlotWelcome{.round = fsm_.round(),
                   .complete = fsm_.CompleteFor(hello.slot),
                   .init_missing = fsm_.InitMissing()});
  sink->OnAck(MakeAck(true));  // A slot that is back has to learn where the window stands.
  if (hello.round != 0 && hello.round + 1 == fsm_.round()) SendLastRound(sink.get());
}

void SimEngine::SlotLost(uint32_t slot, const SlotSink* sink, const std::string& why,
                         Tick silent_for) {
  if (slot >= sinks_.size() || sinks_[slot] == nullptr || sinks_[slot].get() != sink) return;
  sinks_[slot] = nullptr;
  Seat& seat = seats_[slot];
  seat.away_since = deps_.world->now() - silent_for;
  if (silent_for > 0) seat.held_until = seat.away_since + kLease;
  WatchLease(slot);
  Feed(SlotLostInput{slot, why});
}

void SimEngine::Leave(uint32_t slot, uint64_t incarnation) {
  if (!fsm_.plan().epoch.Holds(slot, incarnation)) return;
  sinks_[slot] = nullptr;
  Feed(SlotLeftInput{slot});
  if (Alive()) TellSeatFree(slot);
}

void SimEngine::SendLastRound(SimSink* sink) {
  deps_.world->Met(Cover::kLastRoundAgain);
  RoundResult result = *last_result_;
  result.weight_bytes = result.applied ? WeightBytes(fsm_.owned()) : 0;
  sink->OnResult(result);
  if (result.applied) {
    for (auto it = fsm_.owned().rbegin(); it != fsm_.owned().rend(); ++it) SendWeightsOf(sink, *it);
  }
  sink->OnDone(*last_done_);
}

uint64_t SimEngine::WeightBytes(const std::vector<uint32_t>& extents) const {
  uint64_t bytes = 0;
  for (const uint32_t extent : extents) bytes += fsm_.layout().ExtentWireBytes(extent);
  return bytes;
}

void SimEngine::FetchState(uint32_t slot, uint64_t round, bool weights,
                           std::vector<uint32_t> arrays) {
  if (slot >= sinks_.size() || sinks_[slot] == nullptr) return;
  SimSink* sink = sinks_[slot].get();
  if (fsm_.init_missing() != 0 && round == fsm_.round()) {
    after_init_.push_back([=, this, keep = sinks_[slot]] {
      if (slot < sinks_.size() && sinks_[slot] == keep) FetchState(slot, round, weights, arrays);
    });
    return;
  }
  const bool readable =
      (fsm_.phase() == Phase::kIdle || fsm_.phase() == Phase::kCollect) && !fsm_.Begun(slot);
  if (!readable || round != fsm_.round()) {
    sink->OnError(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
        absl::StrCat("state of version ", round, " was asked for; the job ", "is at version ",
                     fsm_.round(), " (", PhaseName(fsm_.phase()), ")")));
    return;
  }
  StateInfo info{.round = round, .tensor_step = fsm_.tensor_steps()};
  info.opt_step = fsm_.policy().opt_step;
  for (const uint32_t extent : fsm_.owned()) {
    const uint64_t elements = fsm_.layout().extents()[extent].elements;
    if (weights) info.bytes += fsm_.layout().ExtentWireBytes(extent);
    info.bytes += elements * sizeof(float) * arrays.size();
  }
  sink->OnState(info);
  for (const uint32_t extent : fsm_.owned()) {
    if (weights) SendWeightsOf(sink, extent);
    for (const uint32_t array : arrays) SendArrayOf(sink, extent, array);
  }
}

void SimEngine::SendWeightsOf(SimSink* sink, uint32_t extent) {
  const DType dtype = fsm_.layout().extents()[extent].dtype;
  weights_.resize(fsm_.layout().extents().size());
  if (weights_[extent] == nullptr) {
    auto bytes = std::make_shared<std::vector<char>>(fsm_.layout().ExtentWireBytes(extent));
    store_.ReadWeights(fsm_.layout(), extent, bytes->data());
    weights_[extent] = std::move(bytes);
  }
  std::shared_ptr<const std::vector<char>> bytes = weights_[extent];
  if (Is(Mutant::kStaleWeights) && extent < older_weights_.size() &&
      older_weights_[extent] != nullptr) {
    bytes = older_weights_[extent];
  }
  sink->OnExtent({.kind = FrameKind::kWeight,
                  .round = fsm_.round(),
                  .extent = extent,
                  .dtype = dtype,
                  .bytes = {bytes->data(), bytes->size(), bytes}});
}

void SimEngine::SendArrayOf(SimSink* sink, uint32_t extent, uint32_t array) {
  const Layout& layout = fsm_.layout();
  for (uint32_t t = 0; t < TileCount(layout, extent); ++t) {
    const TileView tile = store_.Tile(extent, t);
    const float* plane = array == 0 ? tile.p : array == 1 ? tile.m : tile.v;
    sink->OnExtent(
        {.kind = FrameKind::kState,
         .array = static_cast<uint8_t>(array),
         .round = fsm_.round(),
         .extent = extent,
         .dtype = DType::kF32,
         .offset_bytes = t * layout.tile_elements() * 4,
         .bytes = {reinterpret_cast<const char*>(plane), size_t{tile.elements} * 4, nullptr}});
  }
}

// --- Disk ---------------------------------------------------------------------------------------

void SimEngine::LogExtent(uint32_t extent, const ReducedNorm& reduced) {
  const GradientView grad = contributions_.Gradient(fsm_.layout(), extent);
  log_->AppendExtent({.at = {.epoch = fsm_.plan().epoch.epoch,
                             .round = fsm_.round(),
                             .extent = extent,
                             .dtype = grad.dtype,
                             .sumsq = reduced.norm.sumsq,
                             .nonfinite = reduced.norm.nonfinite,
                             .bytes = grad.bytes,
                             .first_nonfinite = reduced.first_nonfinite},
                      .data = grad.data,
                      .owner = grad.owner});
}

void SimEngine::PumpCheckpoints() {
  const bool applying = fsm_.phase() == Phase::kApplying && !Is(Mutant::kImageWhileApplying);
  if (!log_->keeps_images() || applying || ended_) return;
  checkpointer_.Pump(fsm_.layout(), &store_, log_.get(), fsm_.round(), log_->short_of_room(),
                     [this](const absl::Status& status) { OnImageWritten(status); });
}

void SimEngine::OnImageWritten(const absl::Status& status) {
  checkpointer_.OnWritten();
  if (!status.ok()) {
    deps_.storage_failed(status);
    return;
  }
  PumpCheckpoints();
  if (prepare_waiting_.has_value() && !checkpointer_.initial_pending()) {
    PrepareNow(*std::exchange(prepare_waiting_, std::nullopt));
  }
}

}  // namespace ballast::sim
