// SimRoundLog: what it holds for a snapshot; the mirror of the same calls of job_storage.cc.
// Thread safety: one thread.
#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/sim/round_log.h"

namespace ballast::sim {

using server::HeldState;

// --- On the log's thread ------------------------------------------------------------------------

void SimRoundLog::DoAside(Aside aside) {
  if (!short_of_room_) return Enqueue(std::move(aside));
  deps_.world->AfterInLife(0, deps_.node, life_, EventKind::kLog, std::move(aside));
}

// The thread has nothing else to do while the task in front waits for room.
void SimRoundLog::DoWaitingAsides() {
  const auto is_aside = [](const Task& task) { return std::holds_alternative<Aside>(task); };
  for (const Task& task : tasks_) {
    if (is_aside(task)) DoAside(std::get<Aside>(task));
  }
  std::erase_if(tasks_, is_aside);
}

void SimRoundLog::OnFull(const absl::Status& status) {
  if (Reclaim()) {
    trying_again_ = true;
    return Pump();
  }
  deps_.world->Met(Cover::kLogFull);
  Trace(std::string("the log is full; ") + std::string(status.message()));
  const bool was_short = std::exchange(short_of_room_, true);
  DoWaitingAsides();
  if (!was_short && on_short_of_room_) on_short_of_room_();
}

void SimRoundLog::Hold(std::function<void(absl::StatusOr<HeldState>)> done) {
  DoAside([this, done = std::move(done)] { done(HoldNow()); });
}

void SimRoundLog::ReadRoundsThen(uint64_t until,
                                 std::function<void(absl::StatusOr<HeldRounds>)> then) {
  DoAside([this, until, then = std::move(then)] { then(RoundsNow(until)); });
}

absl::StatusOr<HeldState> SimRoundLog::HoldNow() {
  if (holding_) return absl::AlreadyExistsError("another snapshot of the job is being taken");
  HeldState held;
  absl::Status status;
  for (const server::ImageShape& shape : shapes_) {
    const absl::StatusOr<uint64_t> version = storage_->images()->Hold(shape.extent);
    if (!version.ok()) {
      status = version.status();
      break;
    }
    held.versions[shape.extent] = *version;
    held_.insert(shape.extent);
  }
  gave_way_ = read_when_full_ = false;
  holding_ = status.ok();
  if (holding_) {
    held_round_ = std::max<uint64_t>(prepared_round_, 2) - 1;  // Until it is read.
    return held;
  }
  DropHeld();
  return status;
}

absl::StatusOr<server::RoundLog::HeldRounds> SimRoundLog::RoundsNow(uint64_t until) {
  uint64_t oldest = std::max<uint64_t>(until, 1) - 1;
  held_round_ = kNoRound;
  read_when_full_ = short_of_room_;
  for (const uint32_t extent : held_) {
    oldest = std::min(oldest, storage_->images()->Held(extent).value_or(until));
  }
  const auto& rounds = storage_->log()->rounds();
  HeldRounds found(rounds.lower_bound(oldest), rounds.lower_bound(until));
  BALLAST_RETURN_IF_ERROR(UnlessGone(absl::OkStatus()));
  return found;
}

// For a log that is full: what is held gives way. Whether rounds can be trimmed that could not.
bool SimRoundLog::Reclaim() {
  gave_way_ = gave_way_ || !held_.empty() || held_round_ != kNoRound;
  if (gave_way_ && holding_) deps_.world->Met(Cover::kHoldGaveWay);
  DropHeld();
  const bool held = std::exchange(held_round_, kNoRound) != kNoRound;
  const uint64_t before = std::exchange(covered_round_, CoveredRound());
  TrimLog();
  return held || covered_round_ > before;
}

// --- On any thread ------------------------------------------------------------------------------

void SimRoundLog::LetGo(uint32_t extent) {
  if (held_.erase(extent) != 0) storage_->images()->LetGo(extent);
}

void SimRoundLog::LetAllGo() {
  DropHeld();
  holding_ = false;
  deps_.world->AfterInLife(0, deps_.node, life_, EventKind::kLog,
                           [this] { held_round_ = kNoRound; });
  Trim(CoveredRound());
}

void SimRoundLog::DropHeld() {
  for (const uint32_t extent : std::exchange(held_, {})) storage_->images()->LetGo(extent);
}

absl::Status SimRoundLog::ReadHeld(uint32_t extent, uint64_t version, void* to) {
  return UnlessGone(storage_->images()->Read(extent, version, to));
}

absl::Status SimRoundLog::ReadHeld(const server::LoggedExtent& extent, void* to) {
  return UnlessGone(storage_->log()->ReadFlushed(extent, to));
}

// What was let go for want of room may be overwritten already, whatever was read.
absl::Status SimRoundLog::UnlessGone(const absl::Status& status) const {
  if (!gave_way_ || deps_.mutant == Mutant::kGaveWayUntold) return status;
  return absl::AbortedError("the gradient log needed the room that a snapshot held");
}

}  // namespace ballast::sim
