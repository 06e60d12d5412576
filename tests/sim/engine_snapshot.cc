// SimEngine: the state of a round for a snapshot. See engine.h; the mirror of
// CaptureDesk of server/round. Thread safety: one thread.
#include <algorithm>
#include <utility>

#include "tests/sim/engine.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

void SimEngine::HoldState(const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  if (!failure_.ok()) return done(failure_);
  if (!last_result_.has_value()) {
    return done(absl::FailedPreconditionError("the job has not finished a round yet"));
  }
  if (holds_ || capturing_ != nullptr) {
    ReleaseState();
    return done(absl::AbortedError("an earlier snapshot still holds the state; it lets go"));
  }
  holds_ = true;
  deps_.world->SetGaveWay(deps_.node, log_->short_of_room());
  log_->Hold([this, done](const absl::StatusOr<HeldState>& held) {
    After(0, EventKind::kStrand, [this, held, done] { OnHeld(held, done); });
  });
}

void SimEngine::OnHeld(const absl::StatusOr<HeldState>& held,
                       const std::function<void(absl::StatusOr<uint64_t>)>& done) {
  const bool released = std::exchange(release_wanted_, false);
  if (held.ok() && !released) {
    held_ = *held;
    uint64_t round = std::max<uint64_t>(fsm_.round(), 2);
    for (const auto& [extent, version] : held->versions) round = std::max(round, version);
    return done(round);
  }
  if (held.ok()) log_->LetAllGo();
  holds_ = false;
  done(held.ok() ? GivenUp() : held.status());
}

absl::Status SimEngine::GivenUp() const {
  return failure_.ok() ? absl::AbortedError("the snapshot was given up") : failure_;
}

void SimEngine::CaptureState(uint64_t round, TakeExtent take,
                             std::function<void(absl::StatusOr<CapturedRound>)> done) {
  if (!failure_.ok()) return done(failure_);
  if (!held_.has_value() || capture_order_.has_value()) {
    return done(absl::FailedPreconditionError("no state is held that could be captured"));
  }
  capture_order_ = CaptureOrder{round, std::move(take), std::move(done)};
  StartCapture();
}

// Once the round whose beginning is wanted has begun.
void SimEngine::StartCapture() {
  if (!capture_order_.has_value() || fsm_.round() < capture_order_->round) return;
  Capture capture{.layout = fsm_.layout(),
                  .log = log_,
                  .held = *std::exchange(held_, {}),
                  .round = capture_order_->round,
                  .kernels = &step_kernels_};
  const CaptureOrder order = *std::exchange(capture_order_, std::nullopt);
  holds_ = false;
  if (capture_thread_ == nullptr) capture_thread_ = deps_.threads->MakeExecutor("capture", 1);
  capturing_ = CaptureRun::Start(std::move(capture), order.take, capture_thread_, /*paced=*/false,
                                 [this, order](const absl::StatusOr<CapturedRound>& result) {
                                   After(0, EventKind::kStrand,
                                         [this, order, result] { EndCapture(order, result); });
                                 });
}

void SimEngine::EndCapture(const CaptureOrder& order, const absl::StatusOr<CapturedRound>& result) {
  capturing_ = nullptr;
  if (result.ok() && fsm_.round() > order.round) deps_.world->Met(Cover::kRoundsBesideCapture);
  order.done(result);
}

void SimEngine::ReleaseState() {
  if (capturing_ != nullptr) {
    capturing_->Cancel();  // It lets go itself.
    deps_.world->SetGaveWay(deps_.node, true);
  }
  if (!holds_) return;
  if (!held_.has_value()) {
    release_wanted_ = true;
    return;
  }
  log_->LetAllGo();
  holds_ = false;
  held_.reset();
  deps_.world->SetGaveWay(deps_.node, true);
  if (!capture_order_.has_value()) return;
  std::exchange(capture_order_, std::nullopt)->done(GivenUp());
}

}  // namespace ballast::sim
