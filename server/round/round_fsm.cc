#include "server/round/round_fsm.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/faults/mutant.h"
#include "common/faults/planted.h"
#include "common/job/round_rates.h"
#include "common/text/names.h"
#include "server/optim/scalars.h"
#include "server/round/round_begins.h"
#include "server/round/scalar_bits.h"

namespace ballast::server {
namespace {

// Indices of Input's alternatives, for the transition table.
enum InputKind : size_t {
  kBegin,
  kFrame,
  kReduced,
  kDurable,
  kVote,
  kStepped,
  kSlotLost,
  kSlotLeft,
  kSlotGrows,
  kSlotBack,
  kSeal,
  kFailInput,
  kMeasured
};

}  // namespace

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "idle";
    case Phase::kCollect:
      return "collect";
    case Phase::kPreparing:
      return "preparing";
    case Phase::kPrepared:
      return "prepared";
    case Phase::kApplying:
      return "applying";
    case Phase::kFailed:
      return "failed";
    case Phase::kFinished:
      return "finished";
  }
  return "?";
}

// The protocol. An unlisted input has no effect: a vote for a decided round, a reduction that
// finishes after the job failed.
const std::vector<RoundFsm::Transition>& RoundFsm::Table() {
  using F = RoundFsm;
  static const std::vector<Transition> table = {
      {Phase::kIdle, kBegin, &F::OnBegin},
      {Phase::kIdle, kFrame, &F::OnFrame},
      {Phase::kIdle, kVote, &F::OnVote},
      {Phase::kIdle, kSlotLost, &F::OnSlotLost},
      {Phase::kIdle, kSlotLeft, &F::OnSlotLeft},
      {Phase::kIdle, kSlotGrows, &F::OnSlotGrows},
      {Phase::kIdle, kSlotBack, &F::OnSlotBack},
      {Phase::kIdle, kSeal, &F::OnSeal},
      {Phase::kIdle, kFailInput, &F::OnFail},
      {Phase::kCollect, kBegin, &F::OnBegin},
      {Phase::kCollect, kFrame, &F::OnFrame},
      {Phase::kCollect, kReduced, &F::OnReduced},
      {Phase::kCollect, kVote, &F::OnVote},
      {Phase::kCollect, kSlotLost, &F::OnSlotLost},
      {Phase::kCollect, kSlotLeft, &F::OnSlotLeft},
      {Phase::kCollect, kSlotGrows, &F::OnSlotGrows},
      {Phase::kCollect, kSlotBack, &F::OnSlotBack},
      {Phase::kCollect, kSeal, &F::OnSeal},
      {Phase::kCollect, kFailInput, &F::OnFail},
      {Phase::kPreparing, kBegin, &F::OnLateBegin},
      {Phase::kPreparing, kDurable, &F::OnDurable},
      {Phase::kPreparing, kVote, &F::OnVote},
      {Phase::kPreparing, kSlotLost, &F::OnSlotLost},
      {Phase::kPreparing, kSlotLeft, &F::OnSlotLeft},
      {Phase::kPreparing, kSlotBack, &F::OnSlotBack},
      {Phase::kPreparing, kSeal, &F::OnSeal},
      {Phase::kPreparing, kFailInput, &F::OnFail},

      {Phase::kPrepared, kBegin, &F::OnLateBegin},
      {Phase::kPrepared, kVote, &F::OnVote},
      {Phase::kPrepared, kMeasured, &F::OnMeasured},
      {Phase::kPrepared, kDurable, &F::OnDurable},
      {Phase::kPrepared, kSlotLost, &F::OnSlotLost},
      {Phase::kPrepared, kSlotLeft, &F::OnSlotLeft},
      {Phase::kPrepared, kSlotBack, &F::OnSlotBack},
      {Phase::kPrepared, kSeal, &F::OnSeal},
      {Phase::kPrepared, kFailInput, &F::OnFail},

      {Phase::kApplying, kBegin, &F::OnLateBegin},
      {Phase::kApplying, kStepped, &F::OnStepped},
      {Phase::kApplying, kSlotLost, &F::OnSlotLost},
      {Phase::kApplying, kSlotLeft, &F::OnSlotLeft},
      {Phase::kApplying, kSlotBack, &F::OnSlotBack},
      {Phase::kApplying, kSeal, &F::OnSeal},
      {Phase::kApplying, kFailInput, &F::OnFail},
  };
  return table;
}

RoundFsm::RoundFsm(JobPlan plan, Layout layout, uint32_t self, uint32_t chunk_bytes,
                   uint32_t window_extents)
    : self_(self), chunk_bytes_(chunk_bytes), window_extents_(window_extents) {
  round_ = plan.epoch.start_round;
  sealed_ = plan.sealed_epoch == plan.epoch.epoch;
  policy_ = StartPolicy(plan.spec);
  slots_ = SlotsOf(plan.epoch);
  for (SlotState& slot : slots_) slot.rested = plan.resting && slot.member;
  SetPlan(std::move(plan), std::move(layout), 0);
}

std::vector<RoundFsm::SlotState> RoundFsm::SlotsOf(const EpochRecord& epoch) {
  std::vector<SlotState> slots(epoch.seats());
  for (const Member& member : epoch.members) slots[member.slot].member = true;
  return slots;
}

void RoundFsm::SetPlan(JobPlan plan, Layout layout, uint32_t first_new_extent) {
  plan_ = std::move(plan);
  layout_ = std::move(layout);
  tensor_step_.resize(layout_.tensors().size(), 0);
  position_.assign(layout_.extents().size(), kNotOwned);
  owned_.clear();
  for (const uint32_t extent : layout_.push_order()) {
    if (plan_.owner[extent] != self_) continue;
    position_[extent] = static_cast<uint32_t>(owned_.size());
    owned_.push_back(extent);
  }
  contributors_.Take(plan_.epoch.contributors, layout_);
  for (SlotState& slot : slots_) slot.growing = false;
  init_.Reset(static_cast<uint32_t>(layout_.extents().size()), 1);
  for (uint32_t extent = first_new_extent; extent < layout_.extents().size(); ++extent) {
    if (position_[extent] == kNotOwned) continue;
    OpenInit(extent);
    ++init_missing_;
  }
  ResetRound();
}

void RoundFsm::OpenInit(uint32_t extent) {
  init_.Open(extent, 0, ChunkRanges(layout_, extent, chunk_bytes_, {}));
}

void RoundFsm::ResetRound() {
  contributors_.EndUpload();
  const auto rows = static_cast<uint32_t>(owned_.size());
  registers_.Reset(rows, static_cast<uint32_t>(slots_.size()));
  pending_.resize(rows);
  for (uint32_t i = 0; i < rows; ++i) {
    pending_[i] = static_cast<uint32_t>(Contributors(owned_[i]).size());
  }
  reduced_.assign(rows, 0);
  norms_.assign(rows, ExtentNorm());
  nonfinite_ = 0;
  first_nonfinite_ = Nonfinite();
  reduced_count_ = 0;
  window_base_ = 0;
  votes_.clear();
  outcome_ = Outcome();
  prepared_.reset();
  for (SlotState& slot : slots_) {
    slot.begun = false;
    slot.owed = 0;
    slot.begin = RoundBegin();
  }
}

void RoundFsm::Step(const Input& input, Effects* effects) {
  for (const Transition& row : Table()) {
    if (row.phase == phase_ && row.input == input.index()) {
      (this->*row.handler)(input, effects);
      return;
    }
  }
}

// --- Begin --------------------------------------------------------------------------------------

void RoundFsm::OnBegin(const Input& input, Effects* effects) {
  auto [slot_id, begin] = std::get<BeginInput>(input);
  CutPadding(layout_.tensors().size(), &begin.presence);
  SlotState& slot = slots_[slot_id];
  if (durable() && SameBegin(slot_id, begin)) {  // Its stream broke, so it repeats its begin.
    effects->push_back(AckSlot{slot_id, slot.owed == 0});
    return;
  }
  if (durable() && begin.round + 1 == round_) {
    // It repeated its begin after its stream broke, and the round ended meanwhile: its result has
    // been sent to the new stream.
    effects->push_back(AckSlot{slot_id, true});
    return;
  }
  if (absl::Status st = CheckBegin(slot_id, begin); !st.ok()) {
    // A refused slot can take no further part, so the others see it as lost.
    slot.lost = true;
    slot.why_lost = std::string(st.message());
    effects->push_back(FailSlot{slot_id, st});
    CheckSeats(effects);
    return;
  }
  if (absl::Status same = CheckSameRound(slot_id, begin); !same.ok()) {
    Fail(std::move(same), effects);
    return;
  }
  slot.begun = true;
  slot.begin = std::move(begin);
  phase_ = Phase::kCollect;
  CheckGrowing(effects);
  CheckSeats(effects);
  if (phase_ != Phase::kCollect) return;

  OpenRegisters(slot_id, effects);
  MaybePrepare(effects);
}

// Opens the registers of the extents that the slot owes: all it contributes to, except those
// reduced before a restart. In an upload the lead trainer alone contributes.
void RoundFsm::OpenRegisters(uint32_t slot_id, Effects* effects) {
  SlotState& slot = slots_[slot_id];
  if (IsUpload(slot.begin.upload) && !contributors_.uploads()) {
    contributors_.BeginUpload(plan_.epoch.lead_trainer());
    for (uint32_t i = 0; i < owned_.size(); ++i) pending_[i] = reduced_[i] ? pending_[i] : 1;
  }
  std::vector<uint32_t> opened;
  for (uint32_t position = 0; position < owned_.size(); ++position) {
    if (reduced_[position] != 0 || !contributors_.Contributes(owned_[position], slot_id)) continue;
    registers_.Open(position, slot_id,
                    ChunkRanges(layout_, owned_[position], chunk_bytes_, slot.begin.presence));
    opened.push_back(position);
    ++slot.owed;
  }
  if (slot.owed == 0) effects->push_back(AckSlot{slot_id, true});
  for (const uint32_t position : opened) {
    if (registers_.Complete(position, slot_id)) SlotComplete(position, slot_id, effects);
  }
}

// The server has all it needs for the round. A slot whose stream broke cannot know that.
void RoundFsm::OnLateBegin(const Input& input, Effects* effects) {
  const auto& [slot, begin] = std::get<BeginInput>(input);
  if (durable() && begin.round == round_) effects->push_back(AckSlot{slot, true});
}

bool RoundFsm::SameBegin(uint32_t slot_id, const RoundBegin& begin) const {
  const SlotState& slot = slots_[slot_id];
  return slot.begun && slot.begin.round == begin.round &&
         slot.begin.layout_version == begin.layout_version &&
         slot.begin.presence == begin.presence && slot.begin.upload == begin.upload &&
         slot.begin.weight_crc32c == begin.weight_crc32c && slot.begin.steps == begin.steps &&
         slot.begin.gradient_crc32c == begin.gradient_crc32c &&
         slot.begin.loss_scale == begin.loss_scale && SameHyper(slot.begin.hyper, begin.hyper);
}

absl::Status RoundFsm::CheckBegin(uint32_t slot_id, const RoundBegin& begin) const {
  const int slot = static_cast<int>(slot_id);
  if (begin.round != round_) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 begin.round < round_ ? Reason::kRoundClosed : Reason::kFutureRound,
                 absl::StrCat("slot ", slot_id, " begins round ", begin.round,
                              "; the job is at round ", round_),
                 slot);
  }
  if (slots_[slot_id].begun) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kConflict,
                 absl::StrCat("slot ", slot_id, " begins round ", begin.round, " twice"), slot);
  }
  if (slot_id == plan_.epoch.lead_trainer() && init_missing_ != 0) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kNotBegun,
                 absl::StrCat("slot ", slot, " begins round ", begin.round, " while ",
                              init_missing_, " extents still lack their initial weights"),
                 slot);
  }
  uint64_t others = 0;
  for (const SlotState& other : slots_) others += other.begin.user_state.size();
  const uint64_t bytes_max = UserStatesBytesMax(plan_.spec);
  if (std::string why = UserStateRefusal({slot_id, begin}, others, bytes_max); !why.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, Reason::kBadArgument, why, slot);
  }
  if (begin.layout_version != plan_.layout_version) return absl::OkStatus();
  if (std::string why = SizesRefusal({slot_id, begin}, layout_.tensors().size()); !why.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, Reason::kBadFrame, why, slot);
  }
  if (IsUpload(begin.upload)) return CheckUpload(slot_id, begin);
  if (absl::Status st = ValidateHyper(plan_.spec, begin.hyper); !st.ok()) {
    return Error(absl::StatusCode::kInvalidArgument, Reason::kBadHyperparam,
                 absl::StrCat("slot ", slot_id, ": ", st.message()), slot);
  }
  const SaidLossScale said{slot_id, begin.loss_scale};
  if (std::string why = LossScaleRefusal(plan_.spec, policy_, said); !why.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, Reason::kLossScaleMismatch, why, slot);
  }
  return absl::OkStatus();
}

// --- Frames -------------------------------------------------------------------------------------

std::optional<FrameRefused> RoundFsm::RefusalOf(const FrameHeader& frame) const {
  std::string message;
  const Reason reason = CheckFrame(frame, &message);
  if (reason == Reason::kUnspecified) return std::nullopt;
  return FrameRefused{reason, frame.round, frame.extent, frame.offset_bytes, std::move(message)};
}

Reason RoundFsm::CheckFrame(const FrameHeader& frame, std::string* message) const {
  Reason reason = CheckIdentity(frame, message);
  if (reason == Reason::kUnspecified) reason = CheckRound(frame, message);
  if (reason != Reason::kUnspecified) return reason;
  if (frame.kind == FrameKind::kInit) return CheckInitial(frame, message);
  if (frame.kind == FrameKind::kGradient) return CheckGradient(frame, message);
  *message = "trainers send gradients and initial weights only";
  return Reason::kBadFrame;
}

Reason RoundFsm::CheckIdentity(const FrameHeader& frame, std::string* message) const {
  const auto say = [&](Reason reason, std::string text) {
    *message = std::move(text);
    return reason;
  };
  if (frame.job != plan_.job || frame.slot >= slots_.size()) {
    return say(Reason::kBadFrame, absl::StrCat("frame of job ", JobIdText(frame.job), " slot ",
                                               frame.slot, " on a stream of another"));
  }
  if (frame.epoch != plan_.epoch.epoch && !BALLAST_MUTANT(kNoFence)) {
    return say(frame.epoch < plan_.epoch.epoch ? Reason::kStaleEpoch : Reason::kFutureEpoch,
               absl::StrCat("frame of epoch ", frame.epoch, ", the job is in ", plan_.epoch.epoch));
  }
  if (!plan_.epoch.Holds(frame.slot, frame.incarnation) && !BALLAST_MUTANT(kNoFence)) {
    return say(Reason::kWrongIncarnation,
               absl::StrCat("slot ", frame.slot, " is not this process' any more"));
  }
  if (frame.extent >= layout_.extents().size()) {
    return say(Reason::kBadFrame, absl::StrCat("extent ", frame.extent, " does not exist; the job ",
                                               "has ", layout_.extents().size()));
  }
  if (position_[frame.extent] == kNotOwned) {
    return say(Reason::kWrongOwner, absl::StrCat("extent ", frame.extent, " belongs to server ",
                                                 plan_.owner[frame.extent]));
  }
  const DType dtype = layout_.extents()[frame.extent].dtype;
  if (frame.dtype != dtype) {
    return say(Reason::kWrongDtype, absl::StrCat("frame is ", DTypeName(frame.dtype), ", extent ",
                                                 frame.extent, " is ", DTypeName(dtype)));
  }
  return Reason::kUnspecified;
}

Reason RoundFsm::CheckRound(const FrameHeader& frame, std::string* message) const {
  const bool collecting = phase_ == Phase::kIdle || phase_ == Phase::kCollect;
  const bool late = BALLAST_PLANTED && frame.round + 1 == round_;
  if (collecting && (frame.round == round_ || late)) return Reason::kUnspecified;
  if (frame.round > round_ || collecting) {
    *message = absl::StrCat("frame of round ", frame.round, ", the job is at ", round_);
    return frame.round > round_ ? Reason::kFutureRound : Reason::kRoundClosed;
  }
  *message = absl::StrCat("round ", frame.round, " is past collecting (", PhaseName(phase_), ")");
  return Reason::kRoundClosed;
}

Reason RoundFsm::CheckInitial(const FrameHeader& frame, std::string* message) const {
  const auto say = [&](Reason reason, std::string text) {
    *message = std::move(text);
    return reason;
  };
  if (frame.slot != plan_.epoch.lead_trainer()) {
    return say(Reason::kNotContributor,
               absl::StrCat("initial weights come from slot ", plan_.epoch.lead_trainer()));
  }
  const ChunkRange range{frame.offset_bytes, frame.length_bytes};
  switch (init_.Look(frame.extent, 0, range, frame.crc32c)) {
    case FrameVerdict::kDuplicate:
      return say(Reason::kDuplicate, "these initial weights are already in");
    case FrameVerdict::kConflict:
      return say(Reason::kConflict, "other initial weights are already in; those are kept");
    case FrameVerdict::kNoSuchRange:
      return say(Reason::kBadFrame,
                 absl::StrCat("extent ", frame.extent, " expects no initial weights at byte ",
                              frame.offset_bytes, " of length ", frame.length_bytes));
    case FrameVerdict::kNew:
      break;
  }
  return Reason::kUnspecified;
}

Reason RoundFsm::CheckGradient(const FrameHeader& frame, std::string* message) const {
  const auto say = [&](Reason reason, std::string text) {
    *message = std::move(text);
    return reason;
  };
  const uint32_t position = position_[frame.extent];
  if (!contributors_.Contributes(frame.extent, frame.slot)) {
    return say(Reason::kNotContributor,
               absl::StrCat("slot ", frame.slot, " does not contribute to extent ", frame.extent));
  }
  if (!slots_[frame.slot].begun) {
    return say(Reason::kNotBegun,
               absl::StrCat("slot ", frame.slot, " sent a gradient before its RoundBegin"));
  }
  if (position >= window_base_ + window_extents_) {
    return say(
        Reason::kOutOfWindow,
        absl::StrCat("position ", position, " is beyond the window [", window_base_, ", ",
                     window_base_ + window_extents_, "); send it again when the window moves"));
  }
  const ChunkRange range{frame.offset_bytes, frame.length_bytes};
  switch (registers_.Look(position, frame.slot, range, frame.crc32c)) {
    case FrameVerdict::kDuplicate:
      return say(Reason::kDuplicate, "this frame is already in");
    case FrameVerdict::kConflict:
      return say(
          Reason::kConflict,
          absl::StrCat("extent ", frame.extent, " byte ", frame.offset_bytes,
                       " already holds other bytes of slot ", frame.slot, "; those are kept"));
    case FrameVerdict::kNoSuchRange:
      return say(
          Reason::kBadFrame,
          absl::StrCat("extent ", frame.extent, " expects no frame at byte ", frame.offset_bytes,
                       " of length ", frame.length_bytes, " from slot ", frame.slot));
    case FrameVerdict::kNew:
      break;
  }
  return Reason::kUnspecified;
}

void RoundFsm::OnFrame(const Input& input, Effects* effects) {
  const FrameHeader& frame = std::get<FrameInput>(input).frame;
  const ChunkRange range{frame.offset_bytes, frame.length_bytes};
  if (frame.kind == FrameKind::kInit) {
    const FrameVerdict verdict = init_.Put(frame.extent, 0, range, frame.crc32c);
    BALLAST_CHECK(verdict == FrameVerdict::kNew);
    if (init_.Complete(frame.extent, 0)) {
      --init_missing_;
      effects->push_back(InitialComplete{frame.extent});
    }
    effects->push_back(AckSlot{frame.slot, init_missing_ == 0});
    return;
  }
  const uint32_t position = position_[frame.extent];
  const FrameVerdict verdict = registers_.Put(position, frame.slot, range, frame.crc32c);
  BALLAST_CHECK(verdict == FrameVerdict::kNew);
  if (registers_.Complete(position, frame.slot)) SlotComplete(position, frame.slot, effects);
  effects->push_back(AckSlot{frame.slot, slots_[frame.slot].owed == 0});
  MaybePrepare(effects);
}

void RoundFsm::SlotComplete(uint32_t position, uint32_t slot, Effects* effects) {
  --slots_[slot].owed;
  if (--pending_[position] == 0) ExtentComplete(position, effects);
}

void RoundFsm::ExtentComplete(uint32_t position, Effects* effects) {
  const Extent& extent = layout_.extents()[owned_[position]];
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    if (PresentAnywhere(layout_.runs()[extent.first_run + i].tensor)) {
      effects->push_back(ReduceExtent{owned_[position]});
      return;
    }
  }
  MarkReduced({.extent = owned_[position]}, effects);  // No gradient at all: nothing to sum.
}

// --- Reduced, prepared, voted -------------------------------------------------------------------

void RoundFsm::OnReduced(const Input& input, Effects* effects) {
  const auto& reduced = std::get<ReducedInput>(input);
  MarkReduced(reduced, effects);
  MaybePrepare(effects);
}

void RoundFsm::MarkReduced(const ReducedInput& reduced, Effects* effects) {
  const uint32_t position = position_[reduced.extent];
  BALLAST_CHECK(!reduced_[position]);
  reduced_[position] = 1;
  ++reduced_count_;
  norms_[position] = {reduced.extent, reduced.sumsq};
  nonfinite_ += reduced.nonfinite;
  if (ComesBefore(reduced.first_nonfinite, first_nonfinite_)) {
    first_nonfinite_ = reduced.first_nonfinite;
  }
  const uint32_t before = window_base_;
  while (window_base_ < owned_.size() && reduced_[window_base_]) ++window_base_;
  if (window_base_ != before) effects->push_back(MoveWindow{window_base_});
}

void RoundFsm::MaybePrepare(Effects* effects) {
  const bool all_begun = std::all_of(slots_.begin(), slots_.end(),
                                     [](const SlotState& s) { return s.begun || !s.member; });
  if (phase_ != Phase::kCollect || reduced_count_ != owned_.size() || !all_begun || sealed_) {
    return;
  }
  phase_ = Phase::kPreparing;
  prepared_ = MakePrepared();
  effects->push_back(PrepareRound{*prepared_});
}

void RoundFsm::OnDurable(const Input&, Effects* effects) {
  if (phase_ == Phase::kPrepared) return Conclude(effects);  // LAMB's ratios are durable.
  phase_ = Phase::kPrepared;
  votes_[self_] = prepared_->vote;
  effects->push_back(SendVote{round_, prepared_->vote, prepared_->epoch});
  MaybeDecide(effects);
}

PreparedRecord RoundFsm::MakePrepared() const {
  PreparedRecord record;
  record.epoch = plan_.epoch.epoch;
  record.round = round_;
  record.vote = OwnVote();
  record.present = PresentTensors();
  record.policy = policy_;
  record.tensor_step = tensor_step_;
  if (contributors_.uploads()) {
    const RoundBegin& lead = slots_[plan_.epoch.lead_trainer()].begin;
    record.upload = lead.upload;
    record.steps = lead.steps;
  }
  if (self_ != plan_.servers.front()) return record;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const std::string& state = slots_[slot].begin.user_state;
    if (!state.empty()) record.user_state.emplace(slot, state);
  }
  return record;
}

Vote RoundFsm::OwnVote() const {
  Vote vote;
  vote.server = self_;
  vote.norms = norms_;
  std::sort(vote.norms.begin(), vote.norms.end(),
            [](const ExtentNorm& a, const ExtentNorm& b) { return a.extent < b.extent; });
  vote.nonfinite = nonfinite_;
  vote.first_nonfinite = first_nonfinite_;
  vote.contributor_digest = ContributorDigest();
  if (self_ != plan_.servers.front() || contributors_.uploads()) return vote;
  std::vector<Hyper> hyper = slots_[plan_.epoch.lead_trainer()].begin.hyper;
  if (policy_.version >= kPolicyVersionScheduled) {
    vote.rates = RatesOf(plan_.spec, policy_, hyper);
    if (!BALLAST_MUTANT(kIgnoreSchedule))
      hyper = WithRates(plan_.spec, std::move(hyper), vote.rates);
  }
  vote.scalars = VotedScalars(hyper);
  return vote;
}

std::vector<ScalarSet> RoundFsm::VotedScalars(const std::vector<Hyper>& hyper) const {
  std::set<std::pair<uint32_t, uint64_t>> wanted;  // (group, step)
  for (uint32_t t = 0; t < tensor_step_.size(); ++t) {
    if (PresentAnywhere(t)) wanted.insert({layout_.tensors()[t].group, tensor_step_[t] + 1});
  }
  const Optimizer optimizer = OptimizerOf(plan_.spec);
  std::vector<ScalarSet> sets;
  for (const auto& [group, step] : wanted) {
    const optim::Scalars scalars =
        optim::MakeScalars(optimizer.kind, optimizer.options, hyper[group], step);
    sets.push_back({group, step, ScalarsToBits(scalars)});
  }
  return sets;
}

void RoundFsm::OnVote(const Input& input, Effects* effects) {
  const auto& [epoch, round, vote] = std::get<VoteInput>(input);
  const bool member = std::binary_search(plan_.servers.begin(), plan_.servers.end(), vote.server);
  if (epoch != plan_.epoch.epoch || round != round_ || !member || vote.server == self_) return;
  // A repeated vote changes nothing: the first is kept. A vote for the next round cannot come while
  // this one is applied: trainers begin a round only after every server's RoundDone.
  Vote& kept = votes_.emplace(vote.server, vote).first->second;
  if (!kept.squares.has_value()) kept.squares = vote.squares;  // The second vote.
  if (phase_ == Phase::kPrepared) MaybeDecide(effects);
}

void RoundFsm::MaybeDecide(Effects* effects) {
  if (outcome_.stage != Outcome::Stage::kOpen) return MaybeSettle(effects);
  const bool early = BALLAST_MUTANT(kDecideEarly) && self_ == plan_.servers.front();
  if (votes_.size() != plan_.servers.size() && !early) return;
  DecideInput input = DecideInputOf(plan_.spec);
  for (const ContributorSet& set : plan_.epoch.contributors) {
    input.divisor.push_back(BALLAST_MUTANT(kOldDivisor) ? plan_.spec.world : set.divisor);
  }
  for (const Extent& extent : layout_.extents()) input.extent_group.push_back(extent.group);
  input.policy = policy_;
  input.upload = prepared_->upload;
  SetCounts(prepared_->steps, &input);
  std::vector<Vote> votes;
  for (const auto& [server, vote] : votes_) votes.push_back(vote);
  absl::StatusOr<Decision> decision = Decide(input, std::move(votes));
  if (!decision.ok()) {
    Fail(decision.status(), effects);
    return;
  }
  outcome_.decision = *std::move(decision);
  Conclude(effects);
}

void RoundFsm::OnStepped(const Input&, Effects* effects) {
  for (uint32_t t = 0; t < tensor_step_.size(); ++t) {
    if (PresentAnywhere(t) && !IsUpload(outcome_.decision.upload)) ++tensor_step_[t];
  }
  if (prepared_->steps.has_value()) tensor_step_ = prepared_->steps->tensor;
  CloseRound(effects);
}

void RoundFsm::CloseRound(Effects* effects) {
  policy_ = outcome_.decision.policy;
  const uint64_t closed = round_++;
  phase_ = Phase::kIdle;
  last_prepared_ = std::move(prepared_);
  ResetRound();
  effects->push_back(OpenRound{closed});
  CheckSeats(effects);
}

// --- Seats --------------------------------------------------------------------------------------

void RoundFsm::OnSlotLost(const Input& input, Effects* effects) {
  const auto& [slot, why] = std::get<SlotLostInput>(input);
  if (slots_[slot].left) return;
  slots_[slot].lost = true;
  slots_[slot].why_lost = why;
  CheckSeats(effects);
}

void RoundFsm::OnSlotBack(const Input& input, Effects*) {
  SlotState& slot = slots_[std::get<SlotBackInput>(input).slot];
  slot.lost = false;
  slot.rested = false;
  slot.why_lost.clear();
}

void RoundFsm::OnSlotLeft(const Input& input, Effects* effects) {
  slots_[std::get<SlotLeftInput>(input).slot].left = true;
  CheckSeats(effects);
}

void RoundFsm::OnSlotGrows(const Input& input, Effects* effects) {
  const auto& [slot, grows] = std::get<SlotGrowsInput>(input);
  slots_[slot].growing = grows;
  CheckGrowing(effects);
  CheckSeats(effects);
}

// Fails the job when a slot waits to add groups before a round that another slot has begun without
// them: the two would wait for each other forever.
void RoundFsm::CheckGrowing(Effects* effects) {
  const auto growing = std::find_if(slots_.begin(), slots_.end(),
                                    [](const SlotState& slot) { return slot.growing; });
  const auto begun =
      std::find_if(slots_.begin(), slots_.end(), [](const SlotState& slot) { return slot.begun; });
  if (growing == slots_.end() || begun == slots_.end()) return;
  const auto slot = static_cast<int>(growing - slots_.begin());
  Fail(Error(absl::StatusCode::kFailedPrecondition, Reason::kLayoutMismatch,
             absl::StrCat("slot ", slot, " adds groups before round ", round_, ", which slot ",
                          begun - slots_.begin(), " has begun without them; all slots must add ",
                          "the same groups between the same two rounds"),
             slot),
       effects);
}

// At least one member has left since the job came back from rest. The others have left too, or were
// members when the job came to rest and did not return: the job does not wait for those.
bool RoundFsm::AllHaveLeft() const {
  const bool gone = std::all_of(slots_.begin(), slots_.end(), [](const SlotState& slot) {
    return slot.left || slot.rested || !slot.member;
  });
  return gone &&
         std::any_of(slots_.begin(), slots_.end(), [](const SlotState& s) { return s.left; });
}

// Ends the job when all trainers have left. Fails it when a missing trainer owes something. A slot
// that vanished after its last push does not stop the round it contributed to.
void RoundFsm::CheckSeats(Effects* effects) {
  if (phase_ != Phase::kIdle && phase_ != Phase::kCollect) return;
  if (AllHaveLeft()) {
    phase_ = Phase::kFinished;
    effects->push_back(FinishJob{});
    return;
  }
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    const SlotState& slot = slots_[s];
    if (slot.begun && slot.owed == 0) continue;
    const bool others_began = std::any_of(slots_.begin(), slots_.end(), [](const SlotState& other) {
      return other.begun || other.growing;
    });
    // In a variable world the next epoch continues without it, unless it may owe initial weights,
    // or too few would be left.
    const bool owed = !plan_.spec.variable_world || TooFewStay() ||
                      (InitIsFresh() && s == plan_.epoch.lead_trainer());
    if (slot.left && others_began && owed) {
      Fail(Error(absl::StatusCode::kFailedPrecondition, Reason::kTrainerLeft,
                 absl::StrCat("slot ", s, " left the job ", slot.begun ? "in" : "before", " round ",
                              round_, ", which other slots have begun; all slots must run as many ",
                              "rounds"),
                 static_cast<int>(s)),
           effects);
      return;
    }
    if (slot.lost && !slot.left && !durable()) {
      Fail(Error(absl::StatusCode::kUnavailable, Reason::kTrainerLost,
                 absl::StrCat("trainer slot ", s, " was lost in round ", round_, " (",
                              slot.why_lost, "); it owes server ", self_, " ",
                              slot.begun ? absl::StrCat(slot.owed, " extents") : "its whole push"),
                 static_cast<int>(s)),
           effects);
      return;
    }
  }
}

bool RoundFsm::TooFewStay() const {
  const auto stay = std::count_if(slots_.begin(), slots_.end(),
                                  [](const SlotState& slot) { return slot.member && !slot.left; });
  return static_cast<uint64_t>(stay) < plan_.epoch.min_world;
}

void RoundFsm::OnFail(const Input& input, Effects* effects) {
  Fail(std::get<FailInput>(input).status, effects);
}

void RoundFsm::Fail(absl::Status status, Effects* effects) {
  phase_ = Phase::kFailed;
  failure_ = status;
  effects->push_back(FailJob{std::move(status)});
}

}  // namespace ballast::server
