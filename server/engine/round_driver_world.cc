// RoundDriver: the work around rounds: restarts, peers, views, new plans. See round_driver.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"
#include "server/engine/round_driver.h"

namespace ballast::server {

// --- Beginning ----------------------------------------------------------------------------------

void RoundDriver::Open(const Recovered* recovered) {
  strand_.Bind(weak_from_this());
  if (recovered != nullptr) Resume(*recovered);
  // On the strand, as all that touches the state: the tier's first reads may end while later ones
  // start.
  strand_.Post([this] { UseLog(log_); });
}

void RoundDriver::Resume(const Recovered& recovered) {
  if (recovered.fsm.prepared.has_value()) BALLAST_PROBE(kRestoredPrepared);
  if (!recovered.open_extents.empty()) BALLAST_PROBE(kRestoredGradient);
  if (!recovered.ahead.empty()) BALLAST_PROBE(kExtentAhead);
  if (recovered.replayed_rounds > 0) BALLAST_PROBE(kReplay);
  // The open round has stepped these before the crash, and their images say so. Once more would
  // apply its gradient twice.
  sweep_.LeaveOut({recovered.ahead.begin(), recovered.ahead.end()});
  if (recovered.last_decision.has_value()) {
    const DecisionRecord& last = *recovered.last_decision;
    last_decision_ = last;
    // A trainer may have missed the end of that round, and asks for it when it returns.
    momentum_.OnDecision(fsm_.plan().spec, last.decision);
    sinks_.Remember(ResultOf(last.round, last.decision), {.round = last.round});
  }
  const bool fresh = !recovered.last_decision.has_value() && !recovered.fsm.prepared.has_value() &&
                     recovered.fsm.init_missing.size() == fsm_.owned().size();
  if (!fresh) {
    BALLAST_LOG(INFO, LogField("run", fsm_.plan().spec.name),
                LogField("round", recovered.fsm.round))
        << "recovered: " << recovered.image_bytes << " bytes of images and " << recovered.log_bytes
        << " of log, " << recovered.replayed_rounds << " rounds replayed; round "
        << recovered.fsm.round
        << (recovered.fsm.prepared.has_value() ? " is prepared" : " is open");
  }
  // The effects wait for Start: they may be votes, and peers that answer must find the engine.
  fsm_.Restore(recovered.fsm, &start_effects_);
  if (recovered.fsm.prepared.has_value()) meter_.Resume();
}

void RoundDriver::UseLog(std::shared_ptr<RoundLog> log) {
  log_ = std::move(log);
  // The log's threads keep this callback. It must not keep the engine alive, whose end waits for
  // those threads; a Callback does not.
  log_->OnShortOfRoom([keep = strand_.Callback([this](const absl::Status&) { KeepImages(); })] {
    keep(absl::OkStatus());
  });
  const auto wrap = [this](ImageIo::Done done) -> ImageIo::Done {
    return strand_.Callback([done = std::move(done)](const absl::Status& s) { done(s); });
  };
  state_.placement->Connect({.images = log_.get(),
                             .wrap = wrap,
                             .failed = [this](const absl::Status& s) { StorageFailed(s); },
                             .progress =
                                 [this] {
                                   KeepImages();
                                   initial_.Check();
                                 }},
                            fsm_.round());
}

void RoundDriver::Start(bool restarted) {
  strand_.Post([this, restarted] {
    CarryOut(std::exchange(start_effects_, {}));
    trainers_.Start(restarted);
    if (fsm_.round() > 1) meter_.Continue();
  });
}

// --- Peers --------------------------------------------------------------------------------------

void RoundDriver::PeerVote(uint32_t epoch, uint64_t round, Vote vote,
                           std::function<void(const VoteAnswer&)> answer) {
  strand_.Post([this, epoch, round, vote = std::move(vote), answer = std::move(answer)] {
    Feed(VoteInput{epoch, round, vote});
    answer(fsm_.AnswerVote(round, vote.server));
  });
}

void RoundDriver::VoteRefused(uint64_t round, absl::Status why) {
  strand_.Post([this, round, why = std::move(why)] {
    // In a later phase the round was decided without that answer.
    const bool waits = fsm_.phase() == Phase::kPrepared && fsm_.round() == round;
    if (waits) Feed(FailInput{why});
  });
}

void RoundDriver::PeerLost(uint32_t server, std::string why) {
  strand_.Post([this, server, why = std::move(why)] {
    const auto& servers = fsm_.plan().servers;
    if (!std::binary_search(servers.begin(), servers.end(), server)) return;
    if (fsm_.durable()) return;  // It will return and say what it lacks.
    const std::string& name = fsm_.plan().spec.name;
    Feed(FailInput{
        ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                      absl::StrCat("job \"", name, "\": server ", server, " was lost in round ",
                                   fsm_.round(), " (", why, ")"),
                      {.job = name, .round = fsm_.round(), .server = static_cast<int>(server)})});
  });
}

// --- Views --------------------------------------------------------------------------------------

void RoundDriver::Status(std::function<void(JobStatus)> done) {
  strand_.Post([this, done = std::move(done)] {
    JobStatus status;
    fsm_.FillStatus(&status);
    status.tenant = fsm_.plan().tenant;
    status.state_bytes = state_.store.bytes();
    status.tier = state_.placement->name();
    status.rounds = meter_.history().All();
    status.now_ns = static_cast<uint64_t>(deps_.clock->Now().count());
    status.open_streams = sinks_.open_streams();
    status.state = fsm_.phase() == Phase::kFailed     ? "failed"
                   : fsm_.phase() == Phase::kFinished ? "finished"
                                                      : "running";
    done(std::move(status));
  });
}

// --- New plans ----------------------------------------------------------------------------------

absl::Status RoundDriver::EnterEpoch(const JobPlan& plan, uint32_t window_extents,
                                     Effects* effects) {
  const EpochRecord before = fsm_.plan().epoch;
  BALLAST_RETURN_IF_ERROR(fsm_.Adopt(plan, window_extents, effects));
  window_extents_.store(window_extents, std::memory_order_relaxed);
  const EpochRecord& epoch = fsm_.plan().epoch;
  // First of all: records of the dropped round are void from here on, also after a crash.
  log_->BeginEpoch(epoch.epoch, epoch.start_round);
  meter_.GiveUp();
  contributions_.ReleaseAll();
  initial_.DropWaiting();  // The PREPARE that waits is that of the dropped round.
  sweep_.ForgetLeftOut();
  if (epoch.init_again) initial_.Drop();
  trainers_.ChangeEpoch(before);
  BALLAST_LOG(INFO, LogField("run", fsm_.plan().spec.name), LogField("round", fsm_.round()))
      << "epoch " << epoch.epoch << " starts with round " << epoch.start_round << " and "
      << epoch.world() << " trainers; there were " << before.world();
  if (epoch.world() == before.world() && epoch.seats() == before.seats()) return absl::OkStatus();
  // Registers have room per contributor, so another world needs others.
  contributions_ = Contributions(fsm_.layout(), fsm_.owned(), epoch, window_extents);
  return absl::OkStatus();
}

absl::Status RoundDriver::TakeGrown(const JobPlan& plan, uint32_t window_extents,
                                    std::shared_ptr<RoundLog> log) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_RETURN_IF_ERROR(fsm_.Extend(plan, layout, window_extents));
  window_extents_.store(window_extents, std::memory_order_relaxed);
  // An extent that exists keeps its arrays. Weights and registers are formed again: between rounds
  // they hold nothing that the state does not.
  BALLAST_RETURN_IF_ERROR(state_.placement->Place(layout, fsm_.owned(), fsm_.round()));
  state_.weights = Weights(layout, fsm_.owned());
  contributions_ = Contributions(layout, fsm_.owned(), plan.epoch, window_extents);
  UseLog(std::move(log));
  BALLAST_LOG(INFO, LogField("run", plan.spec.name), LogField("round", fsm_.round()))
      << "grown to " << plan.spec.tensors.size() << " tensors, layout version "
      << plan.layout_version;
  return absl::OkStatus();
}

}  // namespace ballast::server
