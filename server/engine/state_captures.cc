#include "server/engine/state_captures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/threads/priority.h"

namespace ballast::server {
namespace {

// The beginning of round 1 of the job at server `self`, as if a round 0 had ended without a step.
CapturedRound BeforeFirstRound(const JobPlan& plan, uint32_t self) {
  CapturedRound start;
  start.prepared.epoch = plan.epoch.epoch - 1;
  start.prepared.vote.server = self;
  start.prepared.present.assign(plan.spec.tensors.size(), false);
  start.prepared.tensor_step.assign(plan.spec.tensors.size(), 0);
  start.prepared.policy = StartPolicy(plan.spec);
  start.decision.epoch = start.prepared.epoch;
  start.decision.decision.policy = start.prepared.policy;
  return start;
}

}  // namespace

StateCaptures::~StateCaptures() {
  if (thread_ != nullptr) thread_->Shutdown();
}

void StateCaptures::HoldState(Held done) {
  deps_.strand->Post([this, done = std::move(done)] { HoldWhenWritten(done); });
}

void StateCaptures::HoldWhenWritten(const Held& done) {
  if (!ended_.ok()) return done(ended_);
  const bool there = deps_.rounds->last_decision().has_value() || fsm_->init_missing() == 0;
  if (!there || deps_.initial->durable()) return Hold(there, done);
  deps_.waiters->Add(Waiters::kWritten, [this, done] { HoldWhenWritten(done); });
}

void StateCaptures::Hold(bool there, const Held& done) {
  const std::string& name = fsm_->plan().spec.name;
  const ErrorFields fields{.job = name, .server = static_cast<int>(deps_.server)};
  if (!fsm_->durable()) {
    return done(ReasonedError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                              absl::StrCat("job \"", name,
                                           "\" has durability none, so nothing of it is on disk; "
                                           "start it with durability power or process"),
                              fields));
  }
  if (!there) {
    return done(
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kJobBusy,
                      absl::StrCat("job \"", name, "\" has not got all of its first weights ",
                                   "yet; take the snapshot when its trainers are attached"),
                      fields));
  }
  // The home takes one snapshot of a job at a time. A present hold is for a snapshot that the home
  // gave up, or forgot in a restart. It asks again in a moment.
  if (log_ != nullptr || capturing_ != nullptr) {
    Release();
    return done(absl::AbortedError(
        absl::StrCat("server ", deps_.server, " still holds the state of job \"", name,
                     "\" for an earlier snapshot and lets it go; take ", "the snapshot again")));
  }
  // The callback kept by the log's thread must not own the log, which would end on that thread.
  log_ = deps_.rounds->log();
  layout_version_ = fsm_->plan().layout_version;
  const auto held = std::make_shared<HeldState>();
  log_->Hold([held, done = deps_.strand->Callback([this, held, done](const absl::Status& status) {
    OnHeld(*held, status, done);
  })](absl::StatusOr<HeldState> found) {
    if (found.ok()) *held = *std::move(found);
    done(found.status());
  });
}

void StateCaptures::OnHeld(const HeldState& held, const absl::Status& status, const Held& done) {
  if (log_ == nullptr) return done(ended_);  // The job has ended while the log was asked.
  const bool released = std::exchange(release_wanted_, false);
  if (status.ok() && !released) {
    held_ = held;
    uint64_t round = fsm_->round();
    for (const auto& [extent, version] : held.versions) round = std::max(round, version);
    return done(round);
  }
  if (status.ok()) log_->LetAllGo();
  log_ = nullptr;
  done(status.ok() ? GivenUp() : status);
}

absl::Status StateCaptures::GivenUp() const {
  return ended_.ok() ? absl::AbortedError("the snapshot was given up") : ended_;
}

void StateCaptures::CaptureState(uint64_t round, TakeExtent take, Captured done) {
  deps_.strand->Post([this, request = CaptureRequest{round, std::move(take), std::move(done)}] {
    if (!ended_.ok()) return request.done(ended_);
    if (request.round == 0) return request.done(absl::InvalidArgumentError("there is no round 0"));
    if (!held_.has_value() || request_.has_value()) {
      return request.done(absl::FailedPreconditionError(
          absl::StrCat("server ", deps_.server, " holds no state of job \"", fsm_->plan().spec.name,
                       "\" that could be captured; take the snapshot again")));
    }
    request_ = request;
    OnRound();
  });
}

void StateCaptures::OnRound() {
  if (!request_.has_value() || fsm_->round() < request_->round) return;
  CaptureRequest request = *std::exchange(request_, std::nullopt);
  if (fsm_->plan().layout_version == layout_version_) return Start(std::move(request));
  Release();
  request.done(absl::AbortedError(absl::StrCat("job \"", fsm_->plan().spec.name,
                                               "\" has grown meanwhile; take the snapshot again")));
}

void StateCaptures::Start(CaptureRequest request) {
  if (thread_ == nullptr) thread_ = deps_.executors->MakeExecutor("capture", 1, kBesideRounds);
  capturing_ = CaptureRun::Start(
      {.layout = fsm_->layout(),
       .log = std::exchange(log_, nullptr),
       .held = *std::exchange(held_, std::nullopt),
       .round = request.round,
       .kernels = deps_.kernels,
       .optimizer = OptimizerOf(fsm_->plan().spec)},
      std::move(request.take), thread_, paced_ ? deps_.clock : nullptr,
      [this, end = deps_.strand->Ending(), done = std::move(request.done),
       start = BeforeFirstRound(fsm_->plan(), deps_.server)](absl::StatusOr<CapturedRound> result) {
        if (result.ok() && result->prepared.tensor_step.empty()) {
          result = start;
        }
        // The owner of the snapshot waits for `done`, also after this engine's end.
        const auto over = [this, result, done](bool alive) {
          if (alive) {
            capturing_ = nullptr;
            paced_ = !absl::IsAborted(result.status());
          }
          done(result);
        };
        if (!end(over)) done(result);
      });
}

void StateCaptures::ReleaseState() {
  deps_.strand->Post([this] { Release(); });
}

void StateCaptures::Release() {
  if (capturing_ != nullptr) capturing_->Cancel();  // It lets go itself.
  if (log_ == nullptr) return;
  if (!held_.has_value()) {
    release_wanted_ = true;
    return;
  }
  log_->LetAllGo();
  log_ = nullptr;
  held_.reset();
  if (!request_.has_value()) return;
  std::exchange(request_, std::nullopt)->done(GivenUp());
}

void StateCaptures::End(const absl::Status& why) {
  ended_ = why;
  Release();
  if (thread_ != nullptr) thread_->Shutdown();
  if (capturing_ != nullptr) capturing_->Abandon();
  log_ = nullptr;
}

}  // namespace ballast::server
