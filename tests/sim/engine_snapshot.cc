// SimEngine: the state of a round for a snapshot. See engine.h; the mirror of
// server/round/engine_snapshot.cc, whose thread reads one extent after the other: here each of them
// is an event, and rounds go on between any two. Thread safety: one thread.
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
  const auto capturing = std::make_shared<Capturing>();
  capturing->order = *std::exchange(capture_order_, std::nullopt);
  // The engine owns the log, and outlives the capture.
  const std::shared_ptr<RoundLog> log(std::shared_ptr<void>(), log_.get());
  capturing->capture = Capture{.layout = fsm_.layout(),
                               .log = log,
                               .round = capturing->order.round,
                               .kernels = &step_kernels_};
  for (const auto& [extent, version] : held_->versions) {
    capturing->left.emplace_back(version, extent);
  }
  std::sort(capturing->left.rbegin(), capturing->left.rend());
  held_.reset();
  holds_ = false;
  capturing_ = capturing;
  log_->ReadRoundsThen(
      capturing->order.round, [this, capturing](const absl::StatusOr<RoundLog::HeldRounds>& found) {
        After(0, EventKind::kImages, [this, capturing, found] { BeginCapture(capturing, found); });
      });
}

void SimEngine::BeginCapture(const CapturingRef& capturing,
                             const absl::StatusOr<RoundLog::HeldRounds>& rounds) {
  if (!rounds.ok()) return EndCapture(capturing, rounds.status());
  capturing->capture.rounds = *rounds;
  const absl::StatusOr<CapturedRound> before = RoundBefore(capturing->capture);
  if (!before.ok()) return EndCapture(capturing, before.status());
  capturing->before = *before;
  CaptureNext(capturing);
}

// One extent at a time, the one with the oldest slot first.
void SimEngine::CaptureNext(const CapturingRef& capturing) {
  if (capturing->left.empty()) return EndCapture(capturing, absl::OkStatus());
  After(deps_.swarm->snapshots.pace, EventKind::kImages, [this, capturing] {
    const auto [version, extent] = capturing->left.back();
    capturing->left.pop_back();
    capturing->capture.held.versions = {{extent, version}};
    const absl::Status status =
        CaptureExtents(capturing->capture, capturing->order.take, capturing->cancelled);
    if (!Alive()) return;
    status.ok() ? CaptureNext(capturing) : EndCapture(capturing, status);
  });
}

void SimEngine::EndCapture(const CapturingRef& capturing, const absl::Status& status) {
  had_to_give_way_ = capturing->cancelled || log_->wanted_room();
  log_->LetAllGo();
  After(0, EventKind::kStrand, [this, capturing, status] {
    capturing_ = nullptr;
    if (status.ok() && fsm_.round() > capturing->order.round) {
      deps_.world->Met(Cover::kRoundsBesideCapture);
    }
    status.ok() ? capturing->order.done(capturing->before) : capturing->order.done(status);
  });
}

void SimEngine::ReleaseState() {
  if (capturing_ != nullptr) capturing_->cancelled = true;  // It lets go itself.
  if (!holds_) return;
  if (!held_.has_value()) {
    release_wanted_ = true;
    return;
  }
  log_->LetAllGo();
  holds_ = false;
  held_.reset();
  had_to_give_way_ = true;
  if (!capture_order_.has_value()) return;
  std::exchange(capture_order_, std::nullopt)->done(GivenUp());
}

}  // namespace ballast::sim
