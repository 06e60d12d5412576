// Engine: streams that open, close and come back, and what they are told. See engine.h.
// Thread safety: on the job's strand.
#include <algorithm>
#include <utility>

#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "server/round/engine.h"

namespace ballast::server {

// Puts a new engine, which nobody else knows yet, where the log ends.
void Engine::Resume(const Recovered& recovered) {
  WatchRoom();
  ahead_.insert(recovered.ahead.begin(), recovered.ahead.end());
  if (recovered.last_decision.has_value()) {
    const DecisionRecord& last = *recovered.last_decision;
    last_decision_ = last;
    last_result_ = ResultOf(last.round, last.decision);
    last_done_ = RoundDone{.round = last.round};
  }
  const bool fresh = !recovered.last_decision.has_value() && !recovered.fsm.prepared.has_value() &&
                     recovered.fsm.init_missing.size() == fsm_.owned().size();
  if (!fresh) {
    BALLAST_LOG(INFO, LogField("run", name_), LogField("round", recovered.fsm.round))
        << "recovered: " << recovered.image_bytes << " bytes of images and " << recovered.log_bytes
        << " of log, " << recovered.replayed_rounds << " rounds replayed; round "
        << recovered.fsm.round
        << (recovered.fsm.prepared.has_value() ? " is prepared" : " is open");
  }
  fsm_.Restore(recovered.fsm, &start_effects_);
}

void Engine::Start(bool restarted) {
  Post([this, restarted] {
    CarryOut(std::exchange(start_effects_, {}));
    const auto now = deps_.clock->Now();
    for (const Member& member : fsm_.plan().epoch.members) {
      seats_[member.slot].away_since = now;
      if (restarted) seats_[member.slot].held_until = now + 2 * config_.return_wait;
      WatchLease(member.slot);
    }
  });
}

// A trainer that got its seat must open its stream soon, or the others would wait for ever.
void Engine::WatchSeats() {
  if (std::exchange(watching_, true)) return;
  strand_.PostAfter(config_.open_timeout, [weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<Engine>(weak.lock());
    if (self == nullptr) return;
    for (const Member& member : self->fsm_.plan().epoch.members) {
      if (self->seats_[member.slot].seen) continue;
      self->Feed(SlotLostInput{member.slot, "it never opened its stream"});
    }
  });
}

// --- Slots --------------------------------------------------------------------------------------

absl::Status Engine::CheckAttach(const SlotHello& hello) const {
  ErrorFields fields{.job = name_, .round = fsm_.round(), .slot = static_cast<int>(hello.slot)};
  const auto refuse = [&fields](Reason reason, const std::string& message) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, reason, message, fields);
  };
  if (!failure_.ok()) return failure_;
  if (hello.epoch != fsm_.plan().epoch.epoch) {
    return refuse(
        hello.epoch < fsm_.plan().epoch.epoch ? Reason::kStaleEpoch : Reason::kFutureEpoch,
        absl::StrCat("stream of epoch ", hello.epoch, ", the job is in epoch ",
                     fsm_.plan().epoch.epoch));
  }
  const auto taken = [&](uint32_t slot) {
    return fsm_.durable() ? !fsm_.MayReturn(slot) : sinks_[slot] != nullptr || fsm_.Gone(slot);
  };
  if (!fsm_.plan().epoch.Holds(hello.slot, hello.incarnation) || taken(hello.slot)) {
    return refuse(Reason::kWrongIncarnation, absl::StrCat("slot ", hello.slot, " of job \"", name_,
                                                          "\" is not this process'; attach again"));
  }
  const bool version_known = hello.round == 0 || hello.round == fsm_.round() ||
                             (last_result_.has_value() && hello.round + 1 == fsm_.round());
  if (version_known) return absl::OkStatus();
  return refuse(Reason::kWrongVersion,
                absl::StrCat("slot ", hello.slot, " holds version ", hello.round, ", server ",
                             config_.self, " is at version ", fsm_.round(),
                             "; was its data directory replaced or rolled back?"));
}

void Engine::DoAttach(const SlotHello& hello, const std::shared_ptr<SlotSink>& sink,
                      const std::function<void(absl::StatusOr<SlotWelcome>)>& done) {
  // Part of the round's weights went out already: the whole goes out when it is over. Or the slot
  // has seen the round's end elsewhere, and this server is about to learn of it.
  const bool prepared = fsm_.phase() == Phase::kPreparing || fsm_.phase() == Phase::kPrepared;
  if (fsm_.durable() &&
      (fsm_.phase() == Phase::kApplying || (prepared && hello.round == fsm_.round() + 1))) {
    after_apply_.push_back([=, this] { DoAttach(hello, sink, done); });
    return;
  }
  if (absl::Status status = CheckAttach(hello); !status.ok()) {
    done(status);
    return;
  }
  if (sinks_[hello.slot] != nullptr) {
    sinks_[hello.slot]->OnError(ReasonedError(absl::StatusCode::kAborted, Reason::kWrongIncarnation,
                                              "a newer stream took this one's place"));
  }
  sinks_[hello.slot] = sink;
  Seat& seat = seats_[hello.slot];
  seat.held_until = std::chrono::nanoseconds::min();
  const bool was_told = !std::exchange(seat.why_away, "").empty();
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (was_told && slot != hello.slot) TellOfTrainer(hello.slot, sinks_[slot].get());
  }
  if (std::exchange(seat.seen, true)) {
    BALLAST_LOG(INFO, LogField("run", name_), LogField("slot", hello.slot)) << "trainer is back";
  }
  WatchSeats();  // The others know of their seats, too.
  Feed(SlotBackInput{hello.slot});
  SlotWelcome welcome{.round = fsm_.round()};
  if (fsm_.durable()) {
    welcome.complete = fsm_.CompleteFor(hello.slot);
    welcome.init_missing = fsm_.InitMissing();
  }
  done(welcome);
  for (uint32_t slot = 0; slot < seats_.size(); ++slot) {
    if (!seats_[slot].why_away.empty()) TellOfTrainer(slot, sink.get());
  }
  // A slot that is back has to learn where the window stands.
  if (fsm_.durable()) sink->OnAck(MakeAck(true));
  if (hello.round != 0 && hello.round + 1 == fsm_.round()) SendLastRound(hello.slot);
}

void Engine::DoSlotLost(uint32_t slot, const std::string& why,
                        std::chrono::nanoseconds silent_for) {
  sinks_[slot] = nullptr;
  Seat& seat = seats_[slot];
  seat.away_since = deps_.clock->Now() - silent_for;
  if (silent_for.count() > 0) seat.held_until = seat.away_since + config_.lease;
  BALLAST_LOG(WARN, LogField("run", name_), LogField("slot", slot)) << "trainer lost: " << why;
  seat.why_away = why;
  for (const auto& sink : sinks_) TellOfTrainer(slot, sink.get());
  WatchLease(slot);
  Feed(SlotLostInput{slot, why});
}

void Engine::TellOfTrainer(uint32_t slot, SlotSink* to) {
  if (to == nullptr || !fsm_.durable() || config_.self != fsm_.plan().servers.front()) return;
  const Seat& seat = seats_[slot];
  const auto left = seat.away_since + config_.lease - deps_.clock->Now();
  TrainerNews news{.slot = slot, .away = sinks_[slot] == nullptr, .why = seat.why_away};
  if (news.away && left.count() > 0) {
    news.lease_left_ms =
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  }
  to->OnTrainer(news);
}

void Engine::WatchLease(uint32_t slot) {
  if (!on_seat_free_ || ended_ || slot >= seats_.size()) return;
  const auto since = seats_[slot].away_since;
  const auto left = since + config_.lease - deps_.clock->Now();
  strand_.PostAfter(std::max(left, std::chrono::nanoseconds(0)),
                    [weak = weak_from_this(), slot, since] {
                      const auto self = std::static_pointer_cast<Engine>(weak.lock());
                      if (self == nullptr || slot >= self->seats_.size()) return;
                      const bool away = self->sinks_[slot] == nullptr;
                      if (away && self->seats_[slot].away_since == since) self->TellSeatFree(slot);
                    });
}

void Engine::TellSeatFree(uint32_t slot) {
  const Member* const member = fsm_.plan().epoch.Find(slot);
  if (member == nullptr || !on_seat_free_ || ended_) return;
  if (fsm_.InitIsFresh() && slot == fsm_.plan().epoch.lead_trainer()) {
    // Nobody else can upload initial weights; it is looked for again.
    strand_.PostAfter(config_.lease, [weak = weak_from_this(), slot] {
      const auto self = std::static_pointer_cast<Engine>(weak.lock());
      if (self != nullptr) self->WatchLease(slot);
    });
    return;
  }
  on_seat_free_(slot, member->incarnation, fsm_.Left(slot));
}

SeatUse Engine::UseOf(uint32_t slot) const {
  SeatUse use;
  use.open = slot < sinks_.size() &&
             (sinks_[slot] != nullptr || deps_.clock->Now() < seats_[slot].held_until);
  use.anybody =
      std::any_of(sinks_.begin(), sinks_.end(), [](const auto& sink) { return sink != nullptr; });
  return use;
}

// All of a round that the slot did not see the end of.
void Engine::SendLastRound(uint32_t slot) {
  SlotSink* const sink = sinks_[slot].get();
  RoundResult result = *last_result_;
  result.weight_bytes = result.applied ? WeightBytes(fsm_.owned()) : 0;
  sink->OnResult(result);
  if (!result.applied) {
    sink->OnDone(*last_done_);
    return;
  }
  auto stream = std::make_shared<StateStream>();
  stream->slot = slot;
  stream->sink = sinks_[slot];
  stream->round = fsm_.round();
  stream->weights = true;
  stream->extents.assign(fsm_.owned().rbegin(), fsm_.owned().rend());
  stream->end = [sink, done = *last_done_] { sink->OnDone(done); };
  SendState(std::move(stream));
}

uint64_t Engine::WeightBytes(const std::vector<uint32_t>& extents) const {
  uint64_t bytes = 0;
  for (const uint32_t extent : extents) bytes += fsm_.layout().ExtentWireBytes(extent);
  return bytes;
}

// --- Epochs -------------------------------------------------------------------------------------

void Engine::DoSeal(uint32_t epoch, const std::function<absl::Status(const JobPlan&)>& save,
                    const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  if (!failure_.ok()) {
    done(failure_);
    return;
  }
  if (epoch != fsm_.plan().epoch.epoch) {
    const bool stale = epoch < fsm_.plan().epoch.epoch;
    done(ReasonedError(absl::StatusCode::kFailedPrecondition,
                       stale ? Reason::kStaleEpoch : Reason::kFutureEpoch,
                       absl::StrCat("seal of epoch ", epoch, ", server ", config_.self,
                                    " is in epoch ", fsm_.plan().epoch.epoch),
                       {.job = name_, .round = fsm_.round()}));
    return;
  }
  Feed(SealInput{});
  const std::optional<SealAnswer> answer = fsm_.Sealed();
  if (!answer.has_value()) {
    after_durable_.push_back([=, this] { DoSeal(epoch, save, done); });
    return;
  }
  JobPlan sealed = fsm_.plan();
  sealed.sealed_epoch = epoch;
  BALLAST_FAILPOINT("seal.before_save");
  if (const absl::Status saved = save(sealed); !saved.ok()) {
    StorageFailed(saved);  // First: whoever asked sees a server that is away, and asks again.
    done(saved);
    return;
  }
  BALLAST_FAILPOINT("seal.after_save");
  done(*answer);
}

void Engine::DoAdopt(const Adoption& adoption) {
  const EpochRecord& epoch = adoption.plan.epoch;
  if (!failure_.ok() || epoch.epoch <= fsm_.plan().epoch.epoch) {
    adoption.done(failure_);
    return;
  }
  if (fsm_.round() < epoch.start_round) {  // The round before it is decided and ends soon.
    after_apply_.push_back([=, this] { DoAdopt(adoption); });
    return;
  }
  // The record says that the rounds before it are over, so their decisions must survive before it.
  const auto ended = [](Engine* self, const absl::Status& status) {
    if (self->adopting_.empty()) return;  // The job has ended meanwhile.
    const Adoption flushed = std::move(self->adopting_.front());
    self->adopting_.pop_front();
    if (status.ok()) {
      self->AdoptFlushed(flushed);
    } else {
      self->StorageFailed(status);
    }
  };
  adopting_.push_back(adoption);
  log_->EndEpoch(adoption.plan.epoch.start_round, FromDisk(ended));
}

void Engine::AdoptFlushed(const Adoption& adoption) {
  const EpochRecord before = fsm_.plan().epoch;
  if (!failure_.ok() || adoption.plan.epoch.epoch <= before.epoch) {
    adoption.done(failure_);
    return;
  }
  if (reducing_ != 0) {  // The workers still read what would be given back.
    after_reduce_.push_back([=, this] { AdoptFlushed(adoption); });
    return;
  }
  // Before anything is told or taken in the new epoch.
  BALLAST_FAILPOINT("epoch.before_save");
  if (absl::Status saved = adoption.save(); !saved.ok()) {
    StorageFailed(saved);
    return;
  }
  BALLAST_FAILPOINT("epoch.after_save");
  Effects effects;
  absl::Status adopted = fsm_.Adopt(adoption.plan, adoption.window_extents, &effects);
  if (adopted.ok()) {
    window_extents_.store(adoption.window_extents, std::memory_order_relaxed);
    adopted = GoOver(before);
    CarryOut(effects);
  }
  adoption.done(adopted);
}

// The FSM is in the new epoch: lets go of what belonged to the old one.
absl::Status Engine::GoOver(const EpochRecord& before) {
  const EpochRecord& epoch = fsm_.plan().epoch;
  log_->BeginEpoch(epoch.epoch, epoch.start_round);
  contributions_.ReleaseAll();
  prepare_waiting_.reset();
  ahead_.clear();
  if (epoch.init_again) {
    checkpointer_.DropInitial();
    staged_.clear();
  }
  const auto now = deps_.clock->Now();
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (sinks_[slot] == nullptr) continue;
    sinks_[slot]->OnError(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch,
        absl::StrCat("job \"", name_, "\" is in epoch ", epoch.epoch, "; attach again"),
        {.job = name_, .round = fsm_.round()}));
    sinks_[slot] = nullptr;
    seats_[slot].away_since = now;
    seats_[slot].held_until = now + config_.return_wait;
  }
  sinks_.resize(epoch.seats());
  seats_.resize(epoch.seats());
  const auto is_new = [&before](const Member& member) {
    return !before.Holds(member.slot, member.incarnation);
  };
  // With a newcomer everybody who is away has a lease anew: a world that is started again as a
  // whole does not come at once.
  const bool newcomers = std::any_of(epoch.members.begin(), epoch.members.end(), is_new);
  for (const Member& member : epoch.members) {
    if (is_new(member)) seats_[member.slot] = Seat();
    if (newcomers) seats_[member.slot].away_since = now;
    WatchLease(member.slot);
  }
  BALLAST_LOG(INFO, LogField("run", name_), LogField("round", fsm_.round()))
      << "epoch " << epoch.epoch << " starts with round " << epoch.start_round << " and "
      << epoch.world() << " of " << before.world() << " trainers";
  if (epoch.world() == before.world() && epoch.seats() == before.seats()) return absl::OkStatus();
  absl::StatusOr<Contributions> made =
      Contributions::Create(fsm_.layout(), fsm_.owned().size(), epoch, window_extents());
  if (!made.ok()) return made.status();
  contributions_ = *std::move(made);
  return absl::OkStatus();
}

// --- State --------------------------------------------------------------------------------------

void Engine::DoFetchState(uint32_t slot, uint64_t round, bool weights,
                          std::vector<uint32_t> arrays) {
  if (slot >= sinks_.size() || sinks_[slot] == nullptr) return;
  SlotSink* sink = sinks_[slot].get();
  if (fsm_.init_missing() != 0 && round == fsm_.round()) {
    after_init_.push_back([=, this, asker = sinks_[slot]] {
      // Not for a stream that has taken its place meanwhile: that asks for itself.
      if (sinks_[slot] == asker) DoFetchState(slot, round, weights, arrays);
    });
    return;
  }
  // A slot that has begun the round could see it applied while the state is on its way out.
  const bool readable =
      (fsm_.phase() == Phase::kIdle || fsm_.phase() == Phase::kCollect) && !fsm_.Begun(slot);
  const bool known = std::all_of(arrays.begin(), arrays.end(),
                                 [](uint32_t array) { return array < kAdamWStateArrays; });
  if (!readable || round != fsm_.round() || !known) {
    sink->OnError(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
        absl::StrCat("state of version ", round, " was asked for; the job is at version ",
                     fsm_.round(), " (", PhaseName(fsm_.phase()), ") with ", kAdamWStateArrays,
                     " state arrays"),
        {.job = name_, .round = fsm_.round(), .slot = static_cast<int>(slot)}));
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
  auto stream = std::make_shared<StateStream>();
  stream->slot = slot;
  stream->sink = sinks_[slot];
  stream->round = round;
  stream->weights = weights;
  stream->arrays = std::move(arrays);
  stream->extents = fsm_.owned();
  SendState(std::move(stream));
}

// Whether the state is still that of the round that was asked for, and somebody listens.
bool Engine::StillWanted(const StateStream& stream) const {
  return !ended_ && fsm_.round() == stream.round && fsm_.phase() != Phase::kApplying &&
         stream.slot < sinks_.size() && sinks_[stream.slot] == stream.sink;
}

// What is in memory goes out at once. Planes of a tier on NVMe stay there until they are sent, and
// the next extent is loaded then.
void Engine::SendState(std::shared_ptr<StateStream> stream) {
  while (StillWanted(*stream)) {
    if (stream->next == stream->extents.size()) {
      if (stream->end) stream->end();
      return;
    }
    const uint32_t extent = stream->extents[stream->next++];
    const bool formed = extent < weights_.size() && weights_[extent];
    if (nvme_ == nullptr || (stream->arrays.empty() && formed)) {
      if (stream->weights) SendWeightsOf(stream->sink.get(), extent);
      for (const uint32_t array : stream->arrays) {
        SendArrayOf(stream->sink.get(), extent, array, shared_from_this());
      }
      continue;
    }
    nvme_->Acquire(extent, [this, stream, extent](const absl::Status& status) {
      if (status.ok()) {
        SendExtentState(stream, extent);
      } else {
        StorageFailed(status);
      }
    });
    return;
  }
}

void Engine::SendWeightsOf(SlotSink* sink, uint32_t extent) {
  const DType dtype = fsm_.layout().extents()[extent].dtype;
  weights_.resize(fsm_.layout().extents().size());
  BufferRef& weights = weights_[extent];
  if (!weights) {
    absl::StatusOr<BufferRef> buffer = WeightBuffer(dtype);
    if (!buffer.ok()) {
      sink->OnError(buffer.status());
      return;
    }
    weights = *std::move(buffer);
    store_.ReadWeights(fsm_.layout(), extent, weights.data());
  }
  sink->OnExtent(
      {.kind = FrameKind::kWeight,
       .round = fsm_.round(),
       .extent = extent,
       .dtype = dtype,
       .bytes = {weights.data(), fsm_.layout().ExtentWireBytes(extent), weights.ToShared()}});
}

// State planes go out in place: no round can be applied before the slot that asked begins it.
void Engine::SendArrayOf(SlotSink* sink, uint32_t extent, uint32_t array,
                         const std::shared_ptr<const void>& owner) {
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
         .bytes = {reinterpret_cast<const char*>(plane), size_t{tile.elements} * 4, owner}});
  }
}

}  // namespace ballast::server
