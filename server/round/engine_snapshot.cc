// Engine: the state of a round for a snapshot. It is held on the strand, in no time; bringing it to
// the round and handing it on is a thread's own work, beside which rounds go on. See engine.h.
// Thread safety: on the job's strand; a CaptureRun on its executor.
#include <algorithm>
#include <utility>

#include "common/base/priority.h"
#include "common/base/status_macros.h"
#include "server/round/engine.h"

namespace ballast::server {

void Engine::DoHoldState(const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  if (!failure_.ok()) return done(failure_);
  const ErrorFields fields{.job = name_, .server = static_cast<int>(config_.self)};
  if (!fsm_.durable()) {
    return done(ReasonedError(absl::StatusCode::kUnimplemented, Reason::kUnsupported,
                              absl::StrCat("job \"", name_,
                                           "\" has durability none, so nothing of it is on disk; "
                                           "start it with durability power or process"),
                              fields));
  }
  if (!last_decision_.has_value()) {
    return done(
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kBadArgument,
                      absl::StrCat("job \"", name_, "\" has not finished a round yet; take ",
                                   "the snapshot after the first one"),
                      fields));
  }
  // The home takes one snapshot of a job at a time, so what is held is for one that it has given up
  // or does not know any more, having started again. It is tried again in a moment.
  if (held_log_ != nullptr || capturing_ != nullptr) {
    DoReleaseState();
    return done(absl::AbortedError(
        absl::StrCat("server ", config_.self, " still holds the state of job \"", name_,
                     "\" for an earlier snapshot and lets it go; take ", "the snapshot again")));
  }
  // What the log's thread keeps must not own the log: it would end on that thread.
  held_log_ = log_;
  held_layout_ = fsm_.plan().layout_version;
  const auto held = std::make_shared<HeldState>();
  log_->Hold([held, done = FromDisk([held, done](Engine* self, const absl::Status& status) {
                      self->OnHeld(*held, status, done);
                    })](absl::StatusOr<HeldState> found) {
    if (found.ok()) *held = *std::move(found);
    done(found.status());
  });
}

void Engine::OnHeld(const HeldState& held, const absl::Status& status,
                    const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  if (held_log_ == nullptr) return done(failure_);  // The job has ended.
  const bool released = std::exchange(release_wanted_, false);
  if (status.ok() && !released) {
    held_ = held;
    // Round 1 may be decided and not applied yet; its beginning has no round before it.
    uint64_t round = std::max<uint64_t>(fsm_.round(), 2);
    for (const auto& [extent, version] : held.versions) round = std::max(round, version);
    return done(round);
  }
  if (status.ok()) held_log_->LetAllGo();
  held_log_ = nullptr;
  done(status.ok() ? GivenUp() : status);
}

absl::Status Engine::GivenUp() const {
  return failure_.ok() ? absl::AbortedError("the snapshot was given up") : failure_;
}

void Engine::DoCaptureState(const CaptureOrder& order) {
  if (!failure_.ok()) return order.done(failure_);
  if (order.round == 0) return order.done(absl::InvalidArgumentError("there is no round 0"));
  if (!held_.has_value() || capture_order_.has_value()) {
    return order.done(absl::FailedPreconditionError(
        absl::StrCat("server ", config_.self, " holds no state of job \"", name_,
                     "\" that could be captured; take the snapshot again")));
  }
  capture_order_ = order;
  StartCapture();
}

// Once the round whose beginning is wanted has begun.
void Engine::StartCapture() {
  if (!capture_order_.has_value() || fsm_.round() < capture_order_->round) return;
  if (fsm_.plan().layout_version != held_layout_) {
    const CaptureOrder order = *std::exchange(capture_order_, std::nullopt);
    DoReleaseState();
    return order.done(absl::AbortedError(
        absl::StrCat("job \"", name_, "\" has grown meanwhile; take the snapshot again")));
  }
  Capture capture{.layout = fsm_.layout(),
                  .log = std::exchange(held_log_, nullptr),
                  .held = *std::exchange(held_, {}),
                  .round = capture_order_->round,
                  .kernels = &step_kernels_};
  const CaptureOrder order = *std::exchange(capture_order_, std::nullopt);
  if (capture_thread_ == nullptr) {
    capture_thread_ = deps_.executors->MakeExecutor("capture", 1, kBesideRounds);
  }
  capturing_ = CaptureRun::Start(std::move(capture), order.take, capture_thread_, pace_captures_,
                                 [weak = weak_from_this(), post = strand_.Poster(),
                                  done = order.done](const absl::StatusOr<CapturedRound>& result) {
                                   const auto end = [weak, result, done] {
                                     const auto self =
                                         std::static_pointer_cast<Engine>(weak.lock());
                                     if (self != nullptr) {
                                       self->capturing_ = nullptr;
                                       self->pace_captures_ = !absl::IsAborted(result.status());
                                     }
                                     done(result);
                                   };
                                   if (!post(end)) done(result);
                                 });
}

void Engine::DoReleaseState() {
  if (capturing_ != nullptr) capturing_->Cancel();  // It lets go itself.
  if (held_log_ == nullptr) return;
  if (!held_.has_value()) {
    release_wanted_ = true;
    return;
  }
  held_log_->LetAllGo();
  held_log_ = nullptr;
  held_.reset();
  if (!capture_order_.has_value()) return;
  std::exchange(capture_order_, std::nullopt)->done(GivenUp());
}

// A capture's tasks end before what they use.
Engine::~Engine() {
  if (capture_thread_ != nullptr) capture_thread_->Shutdown();
}

// The log's files may be opened by another once the job has ended.
void Engine::EndCapture() {
  DoReleaseState();
  if (capture_thread_ != nullptr) capture_thread_->Shutdown();
  if (capturing_ != nullptr) capturing_->Abandon();
  held_log_ = nullptr;
}

}  // namespace ballast::server
