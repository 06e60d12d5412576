// RoundFsm: restart, agreement of slots, uploads, growth, epochs, and read access for others.
// See round_fsm.h; the protocol itself is in round_fsm.cc. Thread safety: as round_fsm.h.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "common/faults/mutant.h"
#include "server/round/ratios.h"
#include "server/round/round_begins.h"
#include "server/round/round_fsm.h"

namespace ballast::server {
namespace {

uint32_t CrcOfValue(uint64_t value, uint32_t seed) { return Crc32c(&value, sizeof(value), seed); }

}  // namespace

// --- After a restart ----------------------------------------------------------------------------

void RoundFsm::Restore(const Restored& restored, Effects* effects) {
  round_ = restored.round;
  if (!BALLAST_MUTANT(kForgetPolicy)) policy_ = restored.policy;
  tensor_step_ = restored.tensor_step;
  last_prepared_ = restored.last_prepared;
  const bool set_steps = last_prepared_.has_value() && last_prepared_->steps.has_value();
  if (BALLAST_MUTANT(kForgetSetSteps) && set_steps) tensor_step_ = last_prepared_->tensor_step;
  if (BALLAST_MUTANT(kForgetTensorStep)) tensor_step_.assign(tensor_step_.size(), 0);
  init_missing_ = static_cast<uint32_t>(restored.init_missing.size());
  init_.Reset(static_cast<uint32_t>(layout_.extents().size()), 1);
  for (const uint32_t extent : restored.init_missing) {
    OpenInit(extent);
  }
  Effects quiet;  // Dropped: no slot is attached yet, so no window is sent.
  for (const auto& [extent, reduced] : restored.reduced) {
    MarkReduced(reduced, &quiet);
    pending_[position_[extent]] = 0;
  }
  if (!restored.prepared.has_value()) {
    // A peer that took this server's last question, but not yet its vote, asks no more.
    if (last_prepared_.has_value()) {
      effects->push_back(
          SendVote{last_prepared_->round, last_prepared_->vote, last_prepared_->epoch});
    }
    return;
  }
  prepared_ = restored.prepared;
  outcome_.ratios = restored.ratios;
  if (BALLAST_MUTANT(kForgetPresence)) prepared_->present.assign(prepared_->present.size(), true);
  // The PREPARE survived, and with it a vote that peers may have. So the round continues as if its
  // flush had just ended, and the same vote is sent again.
  phase_ = Phase::kPreparing;
  OnDurable(DurableInput{}, effects);
}

// The round is decided, and LAMB's ratios are logged or not yet known.
void RoundFsm::Conclude(Effects* effects) {
  const Decision& decision = outcome_.decision;
  // A restarted server may have ratios from its log: those of the state before a step that may be
  // half done.
  if (TakesTwoPasses(OptimizerOf(plan_.spec), decision) && outcome_.ratios.empty()) {
    outcome_.stage = Outcome::Stage::kMeasuring;
    effects->push_back(MeasureRound{decision});
    return;
  }
  phase_ = Phase::kApplying;
  if (decision.applied) {
    effects->push_back(ApplyRound{decision, outcome_.ratios});
  } else {
    effects->push_back(SkipRound{round_, decision});
    CloseRound(effects);
  }
}

void RoundFsm::OnMeasured(const Input& input, Effects* effects) {
  // The second vote is the first one with squares: a peer that lacks both needs only this one.
  prepared_->vote.squares = std::get<MeasuredInput>(input).squares;
  votes_[self_] = prepared_->vote;
  effects->push_back(SendVote{round_, prepared_->vote, prepared_->epoch});
  MaybeSettle(effects);
}

// Forms the ratios when every server has measured.
void RoundFsm::MaybeSettle(Effects* effects) {
  if (outcome_.stage != Outcome::Stage::kMeasuring) return;
  absl::StatusOr<std::vector<float>> ratios =
      MakeRatios({plan_, layout_, prepared_->present, tensor_step_, outcome_.decision, votes_});
  if (!ratios.ok()) return Fail(ratios.status(), effects);
  if (ratios->empty()) return;
  // Durable before the step, which may overwrite the state that they were measured on.
  outcome_.ratios = *std::move(ratios);
  outcome_.stage = Outcome::Stage::kLogging;
  const Vote& own = prepared_->vote;
  effects->push_back(LogRatios{{prepared_->epoch, round_, outcome_.ratios, *own.squares}});
}

// --- Agreement of slots at the begin of a round -------------------------------------------------

absl::Status RoundFsm::CheckSameRound(uint32_t slot_id, const RoundBegin& begin) const {
  if (begin.layout_version != plan_.layout_version) {
    return Error(
        absl::StatusCode::kFailedPrecondition, Reason::kLayoutMismatch,
        absl::StrCat("slot ", slot_id, " begins round ", begin.round, " with layout version ",
                     begin.layout_version, ", the job is at ", plan_.layout_version,
                     "; all slots must add groups in the same round"),
        static_cast<int>(slot_id));
  }
  const SlotBegin ours{slot_id, begin};
  bool stepped = false;   // All begun slots were found equal before, so one of them is enough;
  bool digested = false;  // for digests, one with digests.
  for (uint32_t other = 0; other < slots_.size(); ++other) {
    if (!slots_[other].begun) continue;
    const SlotBegin theirs{other, slots_[other].begin};
    std::optional<BeginDifference> differs = UploadDifference(ours, theirs, plan_.spec);
    if (!differs && !stepped) differs = StepDifference(ours, theirs, plan_.spec);
    if (!differs && !digested) differs = GradientDifference(ours, theirs, plan_.spec);
    stepped = true;
    digested = digested || !theirs.begin.gradient_crc32c.empty();
    if (!differs) continue;
    return Error(differs->code, differs->reason,
                 absl::StrCat(differs->text, ". Nothing of round ", round_, " was applied"),
                 static_cast<int>(slot_id));
  }
  return absl::OkStatus();
}

// Part of the vote: servers that got different begins from the trainers notice it before anything
// is applied.
uint32_t RoundFsm::ContributorDigest() const {
  uint32_t crc = CrcOfValue(round_, 0);
  const RoundBegin& lead = slots_[plan_.epoch.lead_trainer()].begin;
  for (const Hyper& hyper : lead.hyper) {
    crc = Crc32c(hyper.data(), hyper.size() * sizeof(double), crc);
  }
  for (const uint32_t digest : lead.weight_crc32c) crc = CrcOfValue(digest, crc);
  if (IsStatePlane(lead.upload)) crc = CrcOfValue(static_cast<uint64_t>(lead.upload), crc);
  if (lead.steps.has_value()) {
    crc = CrcOfValue(lead.steps->opt_step, crc);
    for (const uint64_t step : lead.steps->tensor) crc = CrcOfValue(step, crc);
  }
  std::vector<uint8_t> bits;
  for (const SlotState& slot : slots_) {
    if (!slot.member) continue;
    bits.clear();
    // An empty list and a list of ones mean the same and must have the same digest.
    for (size_t t = 0; t < layout_.tensors().size(); ++t) {
      bits.push_back(slot.begin.presence.empty() || slot.begin.presence[t] ? 1 : 0);
    }
    crc = Crc32c(bits.data(), bits.size(), crc);
  }
  return crc;
}

// --- Uploads ------------------------------------------------------------------------------------

absl::Status RoundFsm::CheckUpload(uint32_t slot_id, const RoundBegin& begin) const {
  const auto& tensors = layout_.tensors();
  const size_t digests = begin.weight_crc32c.size();
  const auto bad = [&](const std::string& message) {
    return Error(absl::StatusCode::kInvalidArgument, Reason::kBadFrame,
                 absl::StrCat("slot ", slot_id, " uploads ",
                              UploadPlaneText(begin.upload, StateArraysOf(plan_.spec)), message),
                 static_cast<int>(slot_id));
  };
  const uint32_t arrays = StateArrayCount(plan_.spec);
  if (IsStatePlane(begin.upload) && ArrayOf(begin.upload) >= arrays) {
    return bad(absl::StrCat("; planes of this job have the numbers 2 to ", 2 * arrays + 1));
  }
  if (!begin.hyper.empty() || (digests != 0 && digests != tensors.size()) ||
      (!begin.presence.empty() && !IsLowPlane(begin.upload))) {
    return bad(absl::StrCat(
        " with hyper-parameters of ", begin.hyper.size(), " groups, presence of ",
        begin.presence.size(), " tensors and checksums of ", digests,
        "; an upload has neither of the ", "first, and checksums of none or all ", tensors.size()));
  }
  for (size_t t = 0; t < tensors.size() && IsLowPlane(begin.upload); ++t) {
    if ((begin.presence.empty() || begin.presence[t]) == Carries(begin.upload, tensors[t].dtype)) {
      continue;
    }
    return bad(absl::StrCat(", but its presence is wrong for tensor \"", plan_.spec.tensors[t].name,
                            "\"; 16-bit tensors have a low half, and no others"));
  }
  const std::string why = CountsRefusal(begin, plan_.spec);
  return why.empty() ? absl::OkStatus() : bad(why);
}

// --- Growth -------------------------------------------------------------------------------------

absl::Status RoundFsm::CheckGrowth(const JobPlan& plan) const {
  const bool any_begun =
      std::any_of(slots_.begin(), slots_.end(), [](const SlotState& slot) { return slot.begun; });
  const bool other_round = plan.grown_round != 0 && plan.grown_round != round_;
  if (phase_ == Phase::kIdle && !any_begun && init_missing_ == 0 && !other_round &&
      plan.layout_version == plan_.layout_version + 1) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kFailedPrecondition, Reason::kLayoutMismatch,
               absl::StrCat("layout version ", plan.layout_version, " cannot follow version ",
                            plan_.layout_version, " in phase ", PhaseName(phase_), " of round ",
                            round_, "; groups are added between rounds, by all slots alike"));
}

absl::Status RoundFsm::Extend(JobPlan plan, Layout layout, uint32_t window_extents) {
  if (absl::Status status = CheckGrowth(plan); !status.ok()) return status;
  const auto first_new = static_cast<uint32_t>(layout_.extents().size());
  window_extents_ = window_extents;
  SetPlan(std::move(plan), std::move(layout), first_new);
  return absl::OkStatus();
}

// --- Epochs -------------------------------------------------------------------------------------

void RoundFsm::OnSeal(const Input&, Effects*) { sealed_ = !BALLAST_MUTANT(kPrepareSealed); }

std::optional<SealAnswer> RoundFsm::Sealed() const {
  if (BALLAST_MUTANT(kPrepareSealed)) return SealAnswer{round_, false};
  // While a PREPARE is on its way to the disk neither answer is right: it may survive or not.
  if (!sealed_ || phase_ == Phase::kPreparing) return std::nullopt;
  const bool prepared = phase_ == Phase::kPrepared || phase_ == Phase::kApplying;
  return SealAnswer{round_, prepared && !BALLAST_MUTANT(kForgetPrepared), init_missing_ != 0};
}

absl::Status RoundFsm::Adopt(const JobPlan& plan, uint32_t window_extents, Effects* effects) {
  if (plan.epoch.epoch <= plan_.epoch.epoch) return absl::OkStatus();
  const uint64_t start = plan.epoch.start_round;
  // A round that not all servers have prepared can be dropped: no server has decided it. One that
  // all have prepared lies before `start`, since the home counts it as over.
  const bool can_drop =
      phase_ == Phase::kIdle || phase_ == Phase::kCollect || phase_ == Phase::kPrepared;
  if (round_ != start || !can_drop || plan.owner != plan_.owner) {
    return Error(
        absl::StatusCode::kInternal, Reason::kVoteMismatch,
        absl::StrCat("epoch ", plan.epoch.epoch, " starts with round ", start, ", but server ",
                     self_, " is at round ", round_, " (", PhaseName(phase_), ")"));
  }
  std::vector<SlotState> slots = SlotsOf(plan.epoch);
  for (const Member& member : plan_.epoch.members) {
    // Its Leave arrived in the old epoch, and is not repeated.
    if (plan.epoch.Holds(member.slot, member.incarnation)) {
      slots[member.slot].left = slots_[member.slot].left;
      slots[member.slot].rested = slots_[member.slot].rested;
    }
  }
  plan_.epoch = plan.epoch;
  contributors_.Take(plan_.epoch.contributors, layout_);
  // The job no longer rests: a later seal records this plan.
  plan_.resting = false;
  plan_.resting_round = 0;
  plan_.sealed_epoch = 0;
  sealed_ = false;
  window_extents_ = window_extents;
  phase_ = Phase::kIdle;
  slots_ = std::move(slots);
  DropInit(plan.epoch.init_again);
  ResetRound();
  CheckSeats(effects);
  return absl::OkStatus();
}

// A slot that sends initial weights now sends whole extents, so that none mixes frames of two
// processes. Extents changed by a round stay.
void RoundFsm::DropInit(bool all) {
  // Whether no round with this extent is decided yet: it holds initial weights.
  const auto unvoted = [this](uint32_t extent) {
    const uint32_t tensor = layout_.runs()[layout_.extents()[extent].first_run].tensor;
    return round_ == 1 || (round_ == plan_.grown_round && tensor >= plan_.tensors_before);
  };
  init_missing_ = 0;
  for (const uint32_t extent : owned_) {
    if (init_.Complete(extent, 0) && !(all && unvoted(extent))) continue;
    OpenInit(extent);
    ++init_missing_;
  }
}

// --- Views --------------------------------------------------------------------------------------

std::vector<uint32_t> RoundFsm::CompleteFor(uint32_t slot) const {
  std::vector<uint32_t> complete;
  // From the PREPARE on the round needs no frame of anybody.
  const bool all = phase_ != Phase::kIdle && phase_ != Phase::kCollect;
  for (uint32_t position = 0; position < owned_.size(); ++position) {
    // The lead trainer may be about to upload, which it alone does, regardless of the sets.
    const bool may_upload = slot == plan_.epoch.lead_trainer() && !slots_[slot].begun;
    const bool contributes = may_upload || contributors_.Contributes(owned_[position], slot);
    if (all || !contributes || reduced_[position] != 0 ||
        (slots_[slot].begun && registers_.Complete(position, slot))) {
      complete.push_back(owned_[position]);
    }
  }
  return complete;
}

std::vector<uint32_t> RoundFsm::InitMissing() const {
  std::vector<uint32_t> missing;
  for (const uint32_t extent : owned_) {
    if (!init_.Complete(extent, 0)) missing.push_back(extent);
  }
  return missing;
}

bool RoundFsm::Present(uint32_t slot, uint32_t tensor) const {
  const auto& presence = slots_[slot].begin.presence;
  return slots_[slot].begun && (presence.empty() || presence[tensor]);
}

bool RoundFsm::PresentAnywhere(uint32_t tensor) const {
  if (prepared_.has_value()) return prepared_->present[tensor];  // The slots may be gone.
  const auto& slots = plan_.epoch.contributors[layout_.tensors()[tensor].group].slots;
  return std::any_of(slots.begin(), slots.end(),
                     [&](uint32_t slot) { return Present(slot, tensor); });
}

void RoundFsm::FillStatus(JobStatus* status) const {
  status->name = plan_.spec.name;
  status->job = plan_.job;
  status->round = round_;
  status->phase = PhaseName(phase_);
  status->opt_step = policy_.opt_step;
  status->world = plan_.epoch.world();
  status->extents = static_cast<uint32_t>(layout_.extents().size());
  status->owned_extents = static_cast<uint32_t>(owned_.size());
  status->parameters = layout_.total_elements();
  status->error = failure_.ok() ? "" : std::string(failure_.message());
  for (uint32_t s = 0; s < slots_.size(); ++s) {
    if (!slots_[s].member) continue;
    SlotStatus slot;
    slot.slot = s;
    slot.state = slots_[s].left     ? "left"
                 : slots_[s].lost   ? "lost"
                 : !slots_[s].begun ? "attached"
                 : slots_[s].owed   ? "pushing"
                                    : "done";
    const bool whole_push = phase_ == Phase::kCollect && !slots_[s].begun && !slots_[s].left;
    slot.owed_extents = whole_push ? static_cast<uint32_t>(owned_.size()) : slots_[s].owed;
    for (uint32_t position = 0; position < owned_.size() && slot.owed_extents != 0; ++position) {
      if (registers_.Complete(position, s)) continue;
      slot.first_owed = owned_[position];
      break;
    }
    status->slots.push_back(slot);
  }
  if (phase_ == Phase::kPrepared) {
    for (const uint32_t server : plan_.servers) {
      const auto vote = votes_.find(server);
      const bool again = outcome_.stage != Outcome::Stage::kOpen;  // and voted again
      if (vote != votes_.end() && (vote->second.squares.has_value() || !again)) continue;
      status->votes_missing.push_back(server);
    }
  }
}

std::vector<bool> RoundFsm::PresentTensors() const {
  std::vector<bool> present;
  for (uint32_t t = 0; t < layout_.tensors().size(); ++t) present.push_back(PresentAnywhere(t));
  return present;
}

std::string RoundFsm::UserState(uint32_t slot) const {
  if (!last_prepared_.has_value()) return "";
  const auto state = last_prepared_->user_state.find(slot);
  return state == last_prepared_->user_state.end() ? "" : state->second;
}

// Of the open round, or of the last one: a peer that crashed before it decided that round has no
// other way to learn this vote.
std::optional<Vote> RoundFsm::OwnVoteOn(uint64_t round) const {
  const bool given = phase_ == Phase::kPrepared || phase_ == Phase::kApplying;
  if (round == round_ && given) return prepared_->vote;
  if (BALLAST_MUTANT(kForgetLastVote)) return std::nullopt;
  if (last_prepared_.has_value() && last_prepared_->round == round) return last_prepared_->vote;
  return std::nullopt;
}

VoteAnswer RoundFsm::AnswerVote(uint64_t round, uint32_t peer) const {
  if (!durable() || round + 1 >= round_) return OwnVoteOn(round);
  return Error(absl::StatusCode::kDataLoss, Reason::kStateLost,
               absl::StrCat("server ", peer, " votes on round ", round, ", but server ", self_,
                            " is at round ", round_, ", where it could not be without later votes ",
                            "of server ", peer, ": that one's disk has lost them. Put the right ",
                            "files back there, or start the run again under a new name"),
               -1, static_cast<int>(peer));
}

absl::Status RoundFsm::Error(absl::StatusCode code, Reason reason, const std::string& message,
                             int slot, int server) const {
  ErrorFields fields;
  fields.job = plan_.spec.name;
  fields.round = round_;
  fields.slot = slot;
  fields.server = server;
  return ReasonedError(code, reason, absl::StrCat("job \"", plan_.spec.name, "\": ", message),
                       fields);
}

}  // namespace ballast::server
