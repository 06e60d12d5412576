#include "tests/fuzz/targets/fsm_server.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/reason.h"
#include "server/durability/records/records.h"
#include "server/round/job_plan.h"

namespace ballast::fuzz {
namespace {

using server::PreparedRecord;

std::string BytesOf(uint64_t round, const Decision& decision) {
  return server::EncodeDecision({.epoch = 0, .round = round, .decision = decision});
}

std::string BytesOf(Vote vote) {
  PreparedRecord record;
  vote.squares.reset();  // They come with the second vote.
  record.vote = std::move(vote);
  return server::EncodePrepared(record);
}

std::unique_ptr<server::RoundFsm> MakeFsm(const server::JobPlan& plan, uint32_t self) {
  return std::make_unique<server::RoundFsm>(plan, *server::LayoutOfSpec(plan.spec), self,
                                            kFsmChunkBytes, kFsmWindow);
}

}  // namespace

FsmServer::FsmServer(const server::JobPlan& plan, uint32_t self, FsmHistory* history)
    : self_(self), history_(history), fsm_(MakeFsm(plan, self)) {}

void FsmServer::Feed(const server::Input& input) {
  const uint64_t round = fsm_->round();
  server::Effects effects;
  fsm_->Step(input, &effects);
  if (over_) BALLAST_CHECK(effects.empty());
  Take(effects);
  BALLAST_CHECK(fsm_->round() == round || fsm_->round() == round + 1);
  Look();
}

void FsmServer::Deliver(const FrameHeader& frame) {
  const auto refused = fsm_->RefusalOf(frame);
  if (refused.has_value()) {
    BALLAST_CHECK(refused->reason != Reason::kUnspecified && !refused->message.empty());
    return;
  }
  const server::EpochRecord& epoch = fsm_->plan().epoch;
  BALLAST_CHECK(frame.round == fsm_->round() && frame.epoch == epoch.epoch);
  BALLAST_CHECK(frame.job == fsm_->plan().job && epoch.Holds(frame.slot, frame.incarnation));
  Feed(server::FrameInput{frame});
  BALLAST_CHECK(fsm_->RefusalOf(frame).has_value());  // It is in, or its round is over.
}

void FsmServer::FinishReduce(size_t which) {
  if (reducing_.empty()) return;
  const auto at = reducing_.begin() + static_cast<ptrdiff_t>(which % reducing_.size());
  server::ReducedInput reduced{.extent = *at, .sumsq = 1.0 + *at};
  if (fsm_->round() % 4 == 3 && *at == 0) {
    reduced.nonfinite = 1;
    reduced.first_nonfinite = {.kind = NonfiniteKind::kGradient, .extent = 0, .element = 5};
  }
  reducing_.erase(at);
  reduced_[reduced.extent] = reduced;
  Feed(reduced);
}

void FsmServer::FinishFlush() {
  if (due_ == Due::kPrepare) {
    prepared_ = std::exchange(preparing_, std::nullopt);
  } else if (due_ == Due::kRatios) {
    ratios_ = std::exchange(logging_, {});
  } else {
    return;
  }
  due_ = Due::kNone;
  Feed(server::DurableInput{});
}

void FsmServer::FinishMeasure() {
  if (due_ != Due::kMeasure) return;
  due_ = Due::kNone;
  prepared_->vote.squares = Squares();
  Feed(server::MeasuredInput{Squares()});
}

void FsmServer::FinishStep() {
  if (due_ != Due::kStep) return;
  due_ = Due::kNone;
  Feed(server::SteppedInput{});
}

void FsmServer::Restart() {
  bool left = false;
  for (uint32_t slot = 0; slot < fsm_->plan().epoch.seats(); ++slot) left |= fsm_->Left(slot);
  if (over_ || left || !fsm_->durable()) return;
  server::Restored restored{.round = fsm_->round(),
                            .policy = fsm_->policy(),
                            .tensor_step = fsm_->tensor_steps(),
                            .init_missing = fsm_->InitMissing(),
                            .prepared = prepared_,
                            .last_prepared = fsm_->last_prepared(),
                            .ratios = ratios_};
  if (prepared_.has_value()) restored.reduced = reduced_;
  if (ratios_.empty() && restored.prepared.has_value()) restored.prepared->vote.squares.reset();
  server::JobPlan plan = fsm_->plan();
  if (fsm_->sealed()) plan.sealed_epoch = plan.epoch.epoch;
  const std::vector<float> ratios = ratios_;
  ForgetRound();
  reduced_ = restored.reduced;
  prepared_ = restored.prepared;
  ratios_ = ratios;
  fsm_ = MakeFsm(plan, self_);
  server::Effects effects;
  fsm_->Restore(restored, &effects);
  Take(effects);
  Look();
}

void FsmServer::Adopt(const server::JobPlan& plan) {
  const bool later = plan.epoch.epoch > fsm_->plan().epoch.epoch;
  if (over_ || !later || !fsm_->sealed() || !fsm_->Sealed().has_value() || !reducing_.empty() ||
      fsm_->round() < plan.epoch.start_round) {
    return;
  }
  server::Effects effects;
  BALLAST_CHECK(fsm_->Adopt(plan, kFsmWindow, &effects).ok());
  BALLAST_CHECK(fsm_->round() == plan.epoch.start_round && !fsm_->sealed());
  ForgetRound();
  Take(effects);
  Look();
}

void FsmServer::Take(const server::Effects& effects) {
  for (const server::Effect& effect : effects) {
    BALLAST_CHECK(!over_);
    std::visit([this](const auto& one) { On(one); }, effect);
  }
}

void FsmServer::On(const server::InitialComplete& effect) {
  BALLAST_CHECK(fsm_->InitComplete(effect.extent));
}

void FsmServer::On(const server::AckSlot& effect) {
  BALLAST_CHECK(effect.slot < fsm_->plan().epoch.seats());
}

void FsmServer::On(const server::MoveWindow& effect) {
  BALLAST_CHECK(effect.window_base <= fsm_->owned().size());
}

void FsmServer::On(const server::ReduceExtent& effect) {
  BALLAST_CHECK(fsm_->plan().owner[effect.extent] == self_);
  BALLAST_CHECK(std::find(reducing_.begin(), reducing_.end(), effect.extent) == reducing_.end());
  BALLAST_CHECK(reduced_.count(effect.extent) == 0);
  reducing_.push_back(effect.extent);
}

void FsmServer::On(const server::PrepareRound& effect) {
  BALLAST_CHECK(reducing_.empty() && !fsm_->sealed() && !prepared_.has_value());
  BALLAST_CHECK(effect.record.round == fsm_->round());
  BALLAST_CHECK(effect.record.epoch == fsm_->plan().epoch.epoch);
  Begin(Due::kPrepare);
  preparing_ = effect.record;
}

// Nothing is said that is not flushed, and nothing else is said of a round later.
void FsmServer::On(const server::SendVote& effect) {
  const bool last = fsm_->last_prepared().has_value() && effect.round + 1 == fsm_->round();
  BALLAST_CHECK(prepared_.has_value() || last);
  BALLAST_CHECK(effect.vote.server == self_);
  const auto [said, fresh] =
      history_->votes.try_emplace({effect.epoch, effect.round, self_}, effect.vote);
  BALLAST_CHECK(BytesOf(said->second) == BytesOf(effect.vote));
  history_->sent.push_back({effect.epoch, effect.round, effect.vote});
}

void FsmServer::On(const server::MeasureRound& effect) {
  CheckDecision(effect.decision);
  BALLAST_CHECK(effect.decision.applied);
  Begin(Due::kMeasure);
}

void FsmServer::On(const server::LogRatios& effect) {
  BALLAST_CHECK(decided_ && effect.record.round == fsm_->round());
  Begin(Due::kRatios);
  logging_ = effect.record.ratios;
}

void FsmServer::On(const server::ApplyRound& effect) {
  CheckDecision(effect.decision);
  BALLAST_CHECK(effect.decision.applied);
  const bool lamb = fsm_->plan().spec.optimizer == OptimizerKind::kLamb;
  BALLAST_CHECK(effect.ratios.empty() == !(lamb && !IsUpload(effect.decision.upload)));
  Begin(Due::kStep);
}

void FsmServer::On(const server::SkipRound& effect) {
  BALLAST_CHECK(!effect.decision.applied);
  CheckDecision(effect.decision);
}

void FsmServer::On(const server::OpenRound& effect) {
  BALLAST_CHECK(decided_ && effect.round + 1 == fsm_->round());
  ForgetRound();
}

void FsmServer::On(const server::FailSlot& effect) {
  BALLAST_CHECK(!effect.status.ok() && fsm_->Gone(effect.slot));
}

// Servers whose trainers and peers keep the protocol never disagree.
void FsmServer::On(const server::FailJob& effect) {
  over_ = true;
  BALLAST_CHECK(!effect.status.ok() && fsm_->phase() == server::Phase::kFailed);
  const bool disagrees = ReasonOf(effect.status) == Reason::kVoteMismatch ||
                         effect.status.code() == absl::StatusCode::kInternal;
  BALLAST_CHECK(history_->forged || !disagrees);
}

void FsmServer::On(const server::FinishJob&) { over_ = true; }

void FsmServer::Begin(Due due) {
  BALLAST_CHECK(due_ == Due::kNone);
  due_ = due;
}

// A round is decided after the votes of all servers, alike on each of them and at each try.
void FsmServer::CheckDecision(const Decision& decision) {
  decided_ = true;
  const uint64_t round = prepared_->round;
  if (history_->forged) return;
  for (const uint32_t server : fsm_->plan().servers) {
    BALLAST_CHECK(history_->votes.count({prepared_->epoch, round, server}) == 1);
  }
  const std::string bytes = BytesOf(round, decision);
  const auto known = history_->decisions.try_emplace(round, bytes).first;
  BALLAST_CHECK(known->second == bytes);
}

void FsmServer::ForgetRound() {
  reducing_.clear();
  reduced_.clear();
  prepared_.reset();
  preparing_.reset();
  ratios_.clear();
  logging_.clear();
  decided_ = false;
  due_ = Due::kNone;
}

// Of every run that the server owns and whose tensor has a gradient, by extent, then by run.
std::vector<RunSquares> FsmServer::Squares() const {
  std::vector<RunSquares> squares;
  const Layout& layout = fsm_->layout();
  for (uint32_t e = 0; e < layout.extents().size(); ++e) {
    if (fsm_->plan().owner[e] != self_) continue;
    const Extent& extent = layout.extents()[e];
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      const uint32_t tensor = layout.runs()[extent.first_run + i].tensor;
      if (prepared_->present[tensor]) squares.push_back({e, tensor, 4.0, 1.0});
    }
  }
  return squares;
}

// Others' questions, allowed at any time.
void FsmServer::Look() const {
  server::JobStatus status;
  fsm_->FillStatus(&status);
  BALLAST_CHECK(status.slots.size() == fsm_->plan().epoch.members.size());
  for (const server::Member& member : fsm_->plan().epoch.members) {
    BALLAST_CHECK(fsm_->CompleteFor(member.slot).size() <= fsm_->owned().size());
    (void)fsm_->UserState(member.slot);
  }
  BALLAST_CHECK(fsm_->InitMissing().size() == fsm_->init_missing());
  BALLAST_CHECK(fsm_->window_base() <= fsm_->owned().size());
}

}  // namespace ballast::fuzz
