// SimEngine: streams that open, close and come back, and what goes to disk. See engine.h; the
// mirror of RoundDriver, Audience and ImageKeeper of server/round.
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
    seats_[member.slot].away_since = Now();
    if (restarted) seats_[member.slot].held_until = Now() + 2 * kReturnWait;
    WatchLease(member.slot);
  }
  clock()->AfterInLife(kOpenTimeout, life_, EventKind::kTimer, [this] {
    const std::vector<Member> members = fsm_.plan().epoch.members;
    for (const Member& member : members) {
      if (seats_[member.slot].seen) continue;
      Feed(SlotLostInput{member.slot, "it never opened its stream"});
    }
  });
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
  // What was sent may have broken the stream: elsewhere that is heard of later.
  if (sinks_[hello.slot] != sink) return;
  if (hello.round != 0 && hello.round + 1 == fsm_.round()) SendLastRound(hello.slot);
}

void SimEngine::SlotLost(uint32_t slot, const SlotSink* sink, const std::string& why,
                         Tick silent_for) {
  if (slot >= sinks_.size() || sinks_[slot] == nullptr || sinks_[slot].get() != sink) return;
  sinks_[slot] = nullptr;
  Seat& seat = seats_[slot];
  seat.away_since = Now() - silent_for;
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

void SimEngine::SendLastRound(uint32_t slot) {
  SimSink* const sink = sinks_[slot].get();
  deps_.world->Met(Cover::kLastRoundAgain);
  RoundResult result = *last_result_;
  result.weight_bytes = result.applied ? WeightBytes(fsm_.owned()) : 0;
  sink->OnResult(result);
  if (!result.applied) return sink->OnDone(*last_done_);
  auto stream = std::make_shared<StateStream>(
      StateStream{.slot = slot, .sink = sinks_[slot], .round = fsm_.round(), .weights = true});
  stream->extents.assign(fsm_.owned().rbegin(), fsm_.owned().rend());
  stream->end = [sink, done = *last_done_] { sink->OnDone(done); };
  SendState(stream);
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
  SendState(std::make_shared<StateStream>(StateStream{.slot = slot,
                                                      .sink = sinks_[slot],
                                                      .round = round,
                                                      .weights = weights,
                                                      .arrays = std::move(arrays),
                                                      .extents = fsm_.owned(),
                                                      .end = nullptr}));
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
  if (nvme_ != nullptr) return SaveOldExtents();
  checkpointer_.Pump(fsm_.layout(), &store_, log_.get(), fsm_.round(), log_->short_of_room(),
                     OnStrand([this](const absl::Status& status) { OnImageWritten(status); }));
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
