#include "server/engine/round_driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/overloaded.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/faults/mutant.h"
#include "server/optim/dispatch.h"
#include "server/round/step_plan.h"

namespace ballast::server {
namespace {

uint64_t NoWeights(uint32_t) { return 0; }

// A server's shutdown, or the leave of all trainers, is no failure.
void LogEnd(const RoundFsm& fsm, const absl::Status& why) {
  const LogField run("run", fsm.plan().spec.name), round("round", fsm.round());
  const Reason reason = ReasonOf(why);
  if (reason != Reason::kShuttingDown && reason != Reason::kJobFinished) {
    BALLAST_LOG(ERROR, run, round) << "job failed: " << why.message();
  } else if (fsm.durable() && reason == Reason::kShuttingDown) {
    BALLAST_LOG(INFO, run, round) << "job waits for the next start of this server";
  } else {
    BALLAST_LOG(INFO, run, round) << "job ended: " << why.message();
  }
}

}  // namespace

// Parts get pointers to parts constructed after them, and to the driver as RoundControl. No part
// uses one before Start.
RoundDriver::RoundDriver(const EngineConfig& config, const EngineDeps& deps, Parts parts)
    : job_(parts.fsm.plan().job),
      config_(config),
      deps_(deps),
      window_extents_(config.window_extents),
      strand_(deps.executor),
      fsm_(std::move(parts.fsm)),
      meter_(deps.clock, deps.metrics, fsm_.plan().name()),
      contributions_(std::move(parts.contributions)),
      state_(std::move(parts.state)),
      log_(std::move(parts.log)),
      sinks_(fsm_.plan().epoch.seats()),
      trainers_(TrainerDeps()),
      initial_(&fsm_, &state_, [this] { waiters_.Fire(Waiters::kWritten); }),
      admission_(&fsm_, &contributions_, &initial_, &sinks_, deps.metrics),
      reducer_(&strand_, deps.workers, &reduce::Kernels(deps.isa), &contributions_,
               [this](uint32_t extent, const ReducedNorm& reduced) { OnReduced(extent, reduced); }),
      sweep_({.strand = &strand_,
              .workers = deps.workers,
              .rounds = this,
              .fsm = &fsm_,
              .contributions = &contributions_,
              .state = &state_,
              .sinks = &sinks_,
              .stepped = [this] { OnStepped(); }}),
      changes_({.strand = &strand_,
                .rounds = this,
                .fsm = &fsm_,
                .reducer = &reducer_,
                .placement = state_.placement.get(),
                .waiters = &waiters_,
                .config = config,
                .engine = deps}),
      captures_(CaptureDeps()) {}

TrainerSessions::Deps RoundDriver::TrainerDeps() {
  return {.strand = &strand_,
          .rounds = this,
          .fsm = &fsm_,
          .state = &state_,
          .sinks = &sinks_,
          .waiters = &waiters_,
          .clock = deps_.clock,
          .config = config_,
          .metrics = meter_.job()};
}

StateCaptures::Deps RoundDriver::CaptureDeps() {
  return {.strand = &strand_,
          .rounds = this,
          .fsm = &fsm_,
          .initial = &initial_,
          .waiters = &waiters_,
          .kernels = &optim::Kernels(deps_.isa),
          .executors = deps_.executors,
          .clock = deps_.clock,
          .server = config_.self};
}

void RoundDriver::Feed(const Input& input) {
  strand_.AssertCurrent();
  Effects effects;
  fsm_.Step(input, &effects);
  CarryOut(effects);
}

// An effect may feed the next input itself: a round that steps no extent is over at once. It does
// so last, and the effects of that input come before the rest of this list.
void RoundDriver::CarryOut(const Effects& effects) {
  const Overloaded carry_out{
      [this](const InitialComplete& effect) {
        initial_.Complete(effect.extent);
        if (fsm_.init_missing() == 0) waiters_.Fire(Waiters::kInitial);
      },
      [this](const AckSlot& effect) {
        if (!sinks_.Has(effect.slot)) return;
        BALLAST_FAILPOINT("credit.before_tell");
        sinks_.Sink(effect.slot)->OnAck(MakeAck(fsm_, *log_, effect.flush));
        BALLAST_FAILPOINT("credit.after_tell");
      },
      [this](const MoveWindow&) {
        sinks_.Each([ack = MakeAck(fsm_, *log_, false)](SlotSink* sink) { sink->OnAck(ack); });
      },
      [this](const ReduceExtent& effect) {
        const absl::Status started = reducer_.Start(fsm_, effect.extent);
        if (!started.ok()) FailLater(started);
      },
      [this](const SendVote& effect) {
        BALLAST_FAILPOINT("vote.before_tell");
        // To all: there is no coordinator, and each server decides when it has every vote.
        const JobPlan& plan = fsm_.plan();
        for (const uint32_t server : plan.servers) {
          if (server == config_.self) continue;
          deps_.votes->SendVote(plan.job, effect.epoch, effect.round, server, effect.vote);
        }
        BALLAST_FAILPOINT("vote.after_tell");
      },
      [this](const MeasureRound& effect) { sweep_.Measure(effect.decision); },
      [this](const LogRatios& effect) {
        // Before the step, which changes images: a restart steps the other extents by these, too.
        log_->AppendRatios(effect.record, strand_.Callback([this](const absl::Status& status) {
          status.ok() ? Feed(DurableInput{}) : StorageFailed(status);
        }));
      },
      [this](const FailSlot& effect) { trainers_.Refuse(effect.slot, effect.status); },
      [this](const auto& effect) { Do(effect); }};
  for (const Effect& effect : effects) std::visit(carry_out, effect);
}

// --- Collecting ---------------------------------------------------------------------------------

void RoundDriver::Begin(uint32_t slot, RoundBegin begin) {
  strand_.Post([this, slot, begin = std::move(begin)] {
    if (!sinks_.Has(slot)) return;
    if (const absl::Status st = momentum_.Check(fsm_.plan().spec, slot, begin); !st.ok()) {
      trainers_.Refuse(slot, st);
      return Feed(SlotLostInput{slot, std::string(st.message())});
    }
    if (fsm_.phase() == Phase::kIdle) meter_.Begin();
    meter_.Hear(slot);
    Feed(BeginInput{slot, begin});
    if (fsm_.phase() == Phase::kIdle) meter_.TakeBack();  // The FSM has refused it.
  });
}

void RoundDriver::Frame(const FrameHeader& frame, Payload payload) {
  // On the poller that read the frame, if the job has nothing else to do: a copy, never more.
  strand_.Dispatch([this, frame, payload = std::move(payload)]() mutable {
    const absl::StatusOr<bool> taken = admission_.Take(frame, payload);
    if (!taken.ok()) return FailLater(taken.status());
    if (!*taken) return;
    meter_.Copy(frame.slot, frame.length_bytes);
    // Its bytes count as received from here on, so that the acknowledgement that follows covers
    // them.
    payload = Payload();
    Feed(FrameInput{frame});
  });
}

void RoundDriver::OnReduced(uint32_t extent, const ReducedNorm& reduced) {
  // To the log now, while later extents are still on the wire, so that little is left to write when
  // the round is complete. And before Feed: the last extent makes the FSM prepare, and its PREPARE
  // must come after all gradients that it covers.
  if (fsm_.durable()) {
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
                        .data_crc = contributions_.Checksum(fsm_.layout(), extent),
                        .owner = grad.owner});
  }
  Feed(ReducedInput{extent, reduced.norm.sumsq, reduced.norm.nonfinite, reduced.first_nonfinite});
  if (!reducer_.busy()) waiters_.Fire(Waiters::kReduced);
}

// --- Voting and applying ------------------------------------------------------------------------

// A restart replays rounds from the images. If the first round were decided before all images of
// initial weights exist, there would be nothing to replay it on.
// DurableInput lets the vote out. A server that forgot its vote in a crash could vote differently
// the second time, after its peers have decided by the first.
void RoundDriver::Do(const PrepareRound& effect) {
  meter_.Prepare();
  initial_.WhenDurable([this, record = effect.record] {
    log_->Prepare(record, strand_.Callback([this](const absl::Status& status) {
      if (!status.ok()) return StorageFailed(status);
      Feed(DurableInput{});
      waiters_.Fire(Waiters::kDurable);
    }));
  });
}

void RoundDriver::TellResult(uint64_t round, const Decision& decision,
                             const SlotSinks::WeightBytes& weight_bytes) {
  meter_.Decide(decision);
  last_decision_ = DecisionRecord{fsm_.plan().epoch.epoch, round, decision};
  momentum_.OnDecision(fsm_.plan().spec, decision);
  BALLAST_PROBE(kDecided);
  // The trainers learn the result before the log is flushed: all votes are durable, so a restart
  // reaches the same decision.
  log_->AppendDecision(*last_decision_);
  RoundResult result = ResultOf(round, decision);
  result.collect_ns = meter_.collect_ns();
  result.vote_ns = meter_.vote_ns();
  sinks_.TellResult(result, weight_bytes);
}

// The plan first: the result tells every trainer how many bytes of weights follow. The result
// before the sweep: weights go out extent by extent, and their receivers know of the round by then.
void RoundDriver::Do(const ApplyRound& effect) {
  if (const absl::Status planned = sweep_.Plan(effect.decision, effect.ratios); !planned.ok()) {
    Feed(FailInput{planned});
    return;
  }
  TellResult(fsm_.round(), effect.decision,
             [this](uint32_t slot) { return sweep_.WeightBytes(slot); });
  sweep_.Run();
}

void RoundDriver::OnStepped() {
  if (BALLAST_MUTANT(kImageWhileApplying)) KeepImages();
  meter_.Step(!sweep_.extents().empty());
  // The FSM may have failed meanwhile; then the input has no effect.
  Feed(SteppedInput{});
}

void RoundDriver::Do(const SkipRound& effect) {
  TellResult(effect.round, effect.decision, NoWeights);
  meter_.Step(/*took_time=*/false);
  sweep_.SkipRound();
  const Decision& decision = effect.decision;
  const JobSpec& spec = fsm_.plan().spec;
  const LogField run("run", spec.name), at("round", effect.round);
  if (decision.halted) {
    const UnappliedRound halted = UnappliedOf(ResultOf(effect.round, decision));
    BALLAST_LOG(ERROR, run, at) << HaltError(fsm_.layout(), spec, halted).message();
    return;
  }
  BALLAST_LOG(WARN, run, at) << "round skipped: "
                             << NonfiniteText(fsm_.layout(), spec, decision.first_nonfinite) << "; "
                             << decision.nonfinite << " elements are not finite; number "
                             << decision.policy.consecutive_skips << " in a row";
}

void RoundDriver::Do(const OpenRound& effect) {
  BALLAST_PROBE(kRoundOver);
  contributions_.ReleaseAll();
  sweep_.ForgetLeftOut();
  sinks_.TellDone({.round = effect.round,
                   .step_ns = meter_.step_ns(),
                   .weight_overflows = sweep_.weight_overflows()});
  meter_.End(effect.round);
  state_.placement->OnRound(fsm_.round());
  KeepImages();
  captures_.OnRound();
  // Last: an adoption or a growth may replace the registers, the log and the images used above.
  waiters_.Fire(Waiters::kApplied);
}

// An image of half-stepped state would belong to no version.
void RoundDriver::KeepImages() {
  const bool steps = fsm_.phase() == Phase::kApplying && !BALLAST_MUTANT(kImageWhileApplying);
  if (!steps) state_.placement->KeepImages(fsm_.round(), log_->short_of_room());
}

// --- Ends ---------------------------------------------------------------------------------------

// Its callers are parts in the middle of an effect, whose state must be whole when the job ends.
void RoundDriver::FailLater(const absl::Status& status) {
  strand_.Post([this, status] { Feed(FailInput{status}); });
}

void RoundDriver::StorageFailed(const absl::Status& status) {
  if (!failure_.ok()) return;  // Work under way was broken off then.
  const std::string& name = fsm_.plan().spec.name;
  const absl::Status failed =
      ReasonedError(absl::StatusCode::kUnavailable, Reason::kStorageFailed,
                    absl::StrCat("job \"", name, "\": server ", config_.self,
                                 " cannot use its disk: ", status.message(),
                                 ". Look at the disk and start the server again"),
                    {.job = name, .round = fsm_.round(), .server = static_cast<int>(config_.self)});
  BALLAST_LOG(ERROR, LogField("run", name), LogField("round", fsm_.round())) << failed.message();
  if (deps_.storage_failed) {
    deps_.storage_failed(failed);
  } else {
    Feed(FailInput{failed});
  }
}

void RoundDriver::Do(const FailJob& effect) {
  if (!failure_.ok()) return;
  failure_ = effect.status;  // Before all else: waiting calls ask for it.
  LogEnd(fsm_, effect.status);
  sinks_.Each([&](SlotSink* sink) { sink->OnError(effect.status); });
  End();
}

void RoundDriver::Do(const FinishJob&) {
  if (!failure_.ok()) return;
  const std::string& name = fsm_.plan().spec.name;
  failure_ = ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobFinished,
                           absl::StrCat("job \"", name, "\" is finished; all slots have left"),
                           {.job = name, .round = fsm_.round()});
  BALLAST_LOG(INFO, LogField("run", name), LogField("round", fsm_.round())) << "job finished";
  End();
}

void RoundDriver::End() {
  meter_.GiveUp();
  trainers_.End();
  deps_.votes->DropVotes(fsm_.plan().job);
  // The files may be opened again once the end is reported, so nothing may write to them any more.
  // This waits for the disk; the job has nothing else to do.
  state_.placement->Disconnect();
  captures_.End(failure_);
  log_ = std::make_unique<NullRoundLog>();
  // They get the failure.
  waiters_.Fire(Waiters::kWritten);
  waiters_.Fire(Waiters::kDurable);
  waiters_.Fire(Waiters::kApplied);
  changes_.End();
  if (on_end_) std::exchange(on_end_, nullptr)(failure_, fsm_.round());
}

void RoundDriver::Fail(absl::Status status) {
  strand_.Post([this, status = std::move(status)] { Feed(FailInput{status}); });
}

void RoundDriver::FailUnopened(absl::Status status) {
  strand_.Post([this, status = std::move(status)] {
    if (!sinks_.opened()) Feed(FailInput{status});
  });
}

void RoundDriver::OnEnd(std::function<void(const absl::Status&, uint64_t)> callback) {
  strand_.Post([this, callback = std::move(callback)] {
    if (failure_.ok()) {
      on_end_ = callback;
    } else {
      callback(failure_, fsm_.round());
    }
  });
}

}  // namespace ballast::server
