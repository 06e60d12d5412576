// RoundDriver: the work around rounds: restarts, streams that open and close, fetches of state,
// changes of epoch, growth. See round_driver.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"
#include "server/engine/round_driver.h"
#include "server/round/policy_report.h"

namespace ballast::server {

// --- Beginning ----------------------------------------------------------------------------------

void RoundDriver::Resume(const Recovered& recovered) {
  if (recovered.fsm.prepared.has_value()) BALLAST_PROBE(kRestoredPrepared);
  if (!recovered.open_extents.empty()) BALLAST_PROBE(kRestoredGradient);
  if (!recovered.ahead.empty()) BALLAST_PROBE(kExtentAhead);
  if (recovered.replayed_rounds > 0) BALLAST_PROBE(kReplay);
  sweep_.LeaveOut({recovered.ahead.begin(), recovered.ahead.end()});
  if (recovered.last_decision.has_value()) {
    const DecisionRecord& last = *recovered.last_decision;
    last_decision_ = last;
    momentum_.OnDecision(fsm_.plan().spec, last.decision);
    audience_.Remember(ResultOf(last.round, last.decision), {.round = last.round});
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
  fsm_.Restore(recovered.fsm, &start_effects_);
  if (recovered.fsm.prepared.has_value()) meter_.Resume();
}

void RoundDriver::UseLog(std::shared_ptr<RoundLog> log) {
  log_ = std::move(log);
  log_->OnShortOfRoom([keep = strand_->Callback([this](const absl::Status&) { KeepImages(); })] {
    keep(absl::OkStatus());
  });
  const auto wrap = [this](ImageIo::Done done) -> ImageIo::Done {
    return strand_->Callback([done = std::move(done)](const absl::Status& s) { done(s); });
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
  CarryOut(std::exchange(start_effects_, {}));
  audience_.Start(restarted);
  if (fsm_.round() > 1) meter_.Continue();
}

JobStatus RoundDriver::Status() const {
  JobStatus status;
  fsm_.FillStatus(&status);
  status.tenant = fsm_.plan().tenant;
  status.state_bytes = state_.store.bytes();
  status.tier = state_.placement->name();
  status.rounds = meter_.history().All();
  status.now_ns = static_cast<uint64_t>(deps_.clock->Now().count());
  status.open_streams = audience_.open_streams();
  status.state = fsm_.phase() == Phase::kFailed     ? "failed"
                 : fsm_.phase() == Phase::kFinished ? "finished"
                                                    : "running";
  return status;
}

// --- Streams ------------------------------------------------------------------------------------

void RoundDriver::Attach(const SlotHello& hello, const std::shared_ptr<SlotSink>& sink,
                         const std::function<void(absl::StatusOr<SlotWelcome>)>& done) {
  // While a round is applied, part of its weights went out already: all of them go out at its end.
  // Or the slot has seen the round's end elsewhere, and this server is about to learn of it.
  const bool prepared = fsm_.phase() == Phase::kPreparing || fsm_.phase() == Phase::kPrepared;
  const bool waits =
      fsm_.phase() == Phase::kApplying || (prepared && hello.round == fsm_.round() + 1);
  if (fsm_.durable() && waits && !BALLAST_MUTANT(kAttachWhileApplying)) {
    BALLAST_PROBE(kAttachWaits);
    waiters_.Add(Waiters::kApplied, [=, this] { Attach(hello, sink, done); });
    return;
  }
  if (!failure_.ok()) return done(failure_);
  if (absl::Status status = audience_.CheckHello(hello); !status.ok()) return done(status);
  audience_.Open(hello.slot, sink);
  Feed(SlotBackInput{hello.slot});
  SlotWelcome welcome{.round = fsm_.round(), .durable = fsm_.durable()};
  if (fsm_.durable()) {
    welcome.complete = fsm_.CompleteFor(hello.slot);
    welcome.init_missing = fsm_.InitMissing();
  }
  done(welcome);
  audience_.TellWhoIsAway(hello.slot);
  // A returning slot has to learn the position of the window.
  if (fsm_.durable()) sink->OnAck(MakeAck(true));
  if (hello.round != 0 && hello.round + 1 == fsm_.round()) SendLastRound(hello.slot);
}

void RoundDriver::Lose(uint32_t slot, const SlotSink* sink, const std::string& why,
                       std::chrono::nanoseconds silent_for) {
  if (!audience_.Has(slot) || audience_.Sink(slot).get() != sink) return;
  audience_.Lose(slot, why, silent_for);
  Feed(SlotLostInput{slot, why});
}

void RoundDriver::Leave(uint32_t slot, uint64_t incarnation) {
  // Its stream may have been closed by a new epoch meanwhile.
  if (!fsm_.plan().epoch.Holds(slot, incarnation)) return;
  audience_.Close(slot, absl::OkStatus());
  Feed(SlotLeftInput{slot});
  audience_.CountSeats();
  audience_.TellSeatFree(slot);
}

void RoundDriver::LosePeer(uint32_t server, const std::string& why) {
  const auto& servers = fsm_.plan().servers;
  if (!std::binary_search(servers.begin(), servers.end(), server)) return;
  if (fsm_.durable()) return;  // It will return and say what it lacks.
  const std::string& name = fsm_.plan().spec.name;
  Feed(FailInput{
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                    absl::StrCat("job \"", name, "\": server ", server, " was lost in round ",
                                 fsm_.round(), " (", why, ")"),
                    {.job = name, .round = fsm_.round(), .server = static_cast<int>(server)})});
}

void RoundDriver::SendLastRound(uint32_t slot) {
  SlotSink* const sink = audience_.Sink(slot).get();
  RoundResult result = *audience_.last_result();
  const RoundDone done = *audience_.last_done();
  result.weight_bytes = 0;  // The first result counted only stepped extents; now all come.
  for (const uint32_t extent : fsm_.owned()) {
    if (result.applied) result.weight_bytes += fsm_.layout().ExtentWireBytes(extent);
  }
  sink->OnResult(result);
  if (!result.applied) {
    sink->OnDone(done);
    return;
  }
  sender_.Send({.slot = slot,
                .round = fsm_.round(),
                .weights = true,
                .extents = {fsm_.owned().rbegin(), fsm_.owned().rend()},
                .end = [sink, done] { sink->OnDone(done); }});
}

void RoundDriver::FetchState(uint32_t slot, uint64_t round, bool weights,
                             const std::vector<uint32_t>& arrays) {
  if (!audience_.Has(slot)) return;
  const std::shared_ptr<SlotSink> sink = audience_.Sink(slot);
  if (fsm_.init_missing() != 0 && round == fsm_.round()) {
    waiters_.Add(Waiters::kInitial, [=, this] {
      // Not for a newer stream of the slot, which asks for itself.
      if (audience_.Sink(slot) == sink) FetchState(slot, round, weights, arrays);
    });
    return;
  }
  // After the slot's begin the round could be applied while the state is on its way out.
  const bool readable =
      (fsm_.phase() == Phase::kIdle || fsm_.phase() == Phase::kCollect) && !fsm_.Begun(slot);
  const uint32_t held = StateArrayCount(fsm_.plan().spec);
  const bool known =
      std::all_of(arrays.begin(), arrays.end(), [held](uint32_t array) { return array < held; });
  if (!readable || round != fsm_.round() || !known) {
    sink->OnError(ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kWrongVersion,
        absl::StrCat("state of version ", round, " was asked for; the job is at version ",
                     fsm_.round(), " (", PhaseName(fsm_.phase()), ") with ", held, " state arrays"),
        {.job = fsm_.plan().spec.name, .round = fsm_.round(), .slot = static_cast<int>(slot)}));
    return;
  }
  StateInfo info{.round = round, .tensor_step = fsm_.tensor_steps()};
  info.opt_step = fsm_.policy().opt_step;
  for (const uint32_t extent : fsm_.owned()) {
    if (weights) info.bytes += fsm_.layout().ExtentWireBytes(extent);
    info.bytes += fsm_.layout().extents()[extent].elements * sizeof(float) * arrays.size();
  }
  info.policy = PolicyReportOf(fsm_.policy(), last_decision_);
  sink->OnState(info);
  sender_.Send({.slot = slot,
                .round = round,
                .weights = weights,
                .arrays = arrays,
                .extents = fsm_.owned()});
}

void RoundDriver::HoldState(const CaptureDesk::Held& done) {
  if (!failure_.ok()) return done(failure_);
  const bool there = last_decision_.has_value() || fsm_.init_missing() == 0;
  if (!there || initial_.durable()) return captures_.Hold(log_, there, done);
  waiters_.Add(Waiters::kWritten, [=, this] { HoldState(done); });
}

// --- Epochs -------------------------------------------------------------------------------------

void RoundDriver::Seal(uint32_t epoch, const std::function<absl::Status(const JobPlan&)>& save,
                       const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  if (!failure_.ok()) return done(failure_);
  if (epoch != fsm_.plan().epoch.epoch) {
    const bool stale = epoch < fsm_.plan().epoch.epoch;
    return done(ReasonedError(absl::StatusCode::kFailedPrecondition,
                              stale ? Reason::kStaleEpoch : Reason::kFutureEpoch,
                              absl::StrCat("seal of epoch ", epoch, ", server ", config_.self,
                                           " is in epoch ", fsm_.plan().epoch.epoch),
                              {.job = fsm_.plan().spec.name, .round = fsm_.round()}));
  }
  Feed(SealInput{});
  const std::optional<SealAnswer> answer = fsm_.Sealed();
  if (!answer.has_value()) {
    BALLAST_PROBE(kSealWaits);
    waiters_.Add(Waiters::kDurable, [=, this] { Seal(epoch, save, done); });
    return;
  }
  JobPlan sealed = fsm_.plan();
  sealed.sealed_epoch = BALLAST_MUTANT(kSealNotSaved) ? 0 : epoch;
  BALLAST_FAILPOINT("seal.before_save");
  if (const absl::Status saved = save(sealed); !saved.ok()) {
    // First: the home sees an absent server, and asks again.
    StorageFailed(saved);
    return done(saved);
  }
  BALLAST_FAILPOINT("seal.after_save");
  done(*answer);
}

void RoundDriver::Adopt(const Adoption& adoption) {
  const EpochRecord& epoch = adoption.plan.epoch;
  if (!failure_.ok() || epoch.epoch <= fsm_.plan().epoch.epoch) return adoption.done(failure_);
  if (fsm_.round() < epoch.start_round) {  // The round before it is decided and ends soon.
    BALLAST_PROBE(kAdoptWaits);
    waiters_.Add(Waiters::kApplied, [=, this] { Adopt(adoption); });
    return;
  }
  if (BALLAST_MUTANT(kAdoptUnflushed)) return AdoptFlushed(adoption);
  // The record says that the rounds before it are over, so their decisions must be durable first.
  adopting_.push_back(adoption);
  log_->EndEpoch(epoch.start_round, strand_->Callback([this](const absl::Status& status) {
    if (adopting_.empty()) return;  // The job has ended meanwhile.
    const Adoption flushed = std::move(adopting_.front());
    adopting_.pop_front();
    if (status.ok()) {
      AdoptFlushed(flushed);
    } else {
      StorageFailed(status);
    }
  }));
}

void RoundDriver::AdoptFlushed(const Adoption& adoption) {
  const EpochRecord before = fsm_.plan().epoch;
  if (!failure_.ok() || adoption.plan.epoch.epoch <= before.epoch) return adoption.done(failure_);
  if (reducer_.busy()) {  // The workers still read registers to be given back.
    waiters_.Add(Waiters::kReduced, [=, this] { AdoptFlushed(adoption); });
    return;
  }
  // Before anything is sent or taken in the new epoch. If the record may or may not be on disk, no
  // answer is right: the process ends, and the home asks the next one.
  BALLAST_FAILPOINT("epoch.before_save");
  if (absl::Status saved = adoption.save(); !saved.ok()) return StorageFailed(saved);
  BALLAST_FAILPOINT("epoch.after_save");
  Effects effects;
  absl::Status adopted = fsm_.Adopt(adoption.plan, adoption.window_extents, &effects);
  if (adopted.ok()) {
    window_extents_.store(adoption.window_extents, std::memory_order_relaxed);
    adopted = LeaveEpoch(before);
  }
  // Before the effects: they end the job if its last members have left, and its owner saves the
  // epoch of that end.
  adoption.done(adopted);
  CarryOut(effects);
}

absl::Status RoundDriver::LeaveEpoch(const EpochRecord& before) {
  const EpochRecord& epoch = fsm_.plan().epoch;
  log_->BeginEpoch(epoch.epoch, epoch.start_round);
  meter_.GiveUp();
  contributions_.ReleaseAll();
  initial_.DropWaiting();
  sweep_.ForgetLeftOut();
  if (epoch.init_again) initial_.Drop();
  audience_.ChangeEpoch(before);
  BALLAST_LOG(INFO, LogField("run", fsm_.plan().spec.name), LogField("round", fsm_.round()))
      << "epoch " << epoch.epoch << " starts with round " << epoch.start_round << " and "
      << epoch.world() << " trainers; there were " << before.world();
  if (epoch.world() == before.world() && epoch.seats() == before.seats()) return absl::OkStatus();
  contributions_ = Contributions(fsm_.layout(), fsm_.owned(), epoch, window_extents());
  return absl::OkStatus();
}

// --- Growth -------------------------------------------------------------------------------------

void RoundDriver::Grow(const Growth& growth) {
  const JobPlan& plan = growth.plan;
  if (!failure_.ok()) return growth.done(failure_);
  if (absl::Status status = CheckPlan(plan); !status.ok()) return growth.done(status);
  if (!fsm_.durable()) return growth.done(TakeGrown(plan, growth.window_extents, log_));
  const JobPlan& ours = fsm_.plan();
  if (plan.layout_version == ours.layout_version && FirstDifference(ours.spec, plan.spec).empty()) {
    return growth.done(absl::OkStatus());  // The home asks again.
  }
  if (plan.epoch.epoch != ours.epoch.epoch) {
    return growth.done(
        ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                      absl::StrCat("server ", config_.self, " is in epoch ", ours.epoch.epoch,
                                   ", the job grows in epoch ", plan.epoch.epoch),
                      {.job = ours.spec.name, .server = static_cast<int>(config_.self)}));
  }
  if (fsm_.round() < plan.grown_round) {  // The round before it is decided and ends soon.
    waiters_.Add(Waiters::kApplied, [=, this] { Grow(growth); });
    return;
  }
  state_.placement->Quiesce([=, this] { GrowNow(growth); });
}

void RoundDriver::GrowNow(const Growth& growth) {
  if (!failure_.ok()) return growth.done(failure_);
  absl::Status status =
      grown_.Make(growth.plan, growth.files, {&fsm_, state_.placement.get(), &last_decision_});
  if (status.ok() && !growth.plan.growing) status = CommitGrown(growth);
  growth.done(status);
}

// Once the record is saved there is no way back: an error after it ends the server, which restarts
// with the grown job, without the initial weights of the new groups. The trainers send those again.
absl::Status RoundDriver::CommitGrown(const Growth& growth) {
  BALLAST_RETURN_IF_ERROR(fsm_.CheckGrowth(growth.plan));
  JobPlan grown = growth.plan;
  grown.sealed_epoch = fsm_.sealed() ? grown.epoch.epoch : 0;
  BALLAST_FAILPOINT("growth.before_record");
  if (absl::Status saved = growth.files.save(grown); !saved.ok()) {
    StorageFailed(saved);
    return saved;
  }
  BALLAST_FAILPOINT("growth.after_record");
  std::unique_ptr<JobStorage> storage = grown_.Take();
  storage->Measure(deps_.clock, deps_.metrics, grown.name(),
                   grown.spec.durability == Durability::kPower);
  const absl::Status taken =
      TakeGrown(grown, growth.window_extents,
                JobStorage::MakeRoundLog(std::move(storage), fsm_.round() - 1, deps_.executors,
                                         state_.placement->image_threads()));
  // The old files are of the layout before the record's, and this process still logs to them.
  if (taken.ok()) {
    growth.files.drop_old(grown);
  } else {
    StorageFailed(taken);
  }
  return taken;
}

absl::Status RoundDriver::TakeGrown(const JobPlan& plan, uint32_t window_extents,
                                    std::shared_ptr<RoundLog> log) {
  BALLAST_ASSIGN_OR_RETURN(Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_RETURN_IF_ERROR(fsm_.Extend(plan, layout, window_extents));
  window_extents_.store(window_extents, std::memory_order_relaxed);
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
