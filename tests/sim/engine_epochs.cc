// SimEngine: changes of epoch, seats and their leases. See engine.h; the mirror of
// RoundDriver and Audience of server/round. Thread safety: one thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "tests/sim/engine.h"

namespace ballast::sim {

using namespace server;  // NOLINT: the room that this file mirrors.

// --- Epochs -------------------------------------------------------------------------------------

void SimEngine::Seal(uint32_t epoch, const std::function<absl::Status(const JobPlan&)>& save,
                     const std::function<void(absl::StatusOr<SealAnswer>)>& done) {
  if (!failure_.ok()) return done(failure_);
  const uint32_t ours = fsm_.plan().epoch.epoch;
  if (epoch != ours) {
    return done(ReasonedError(absl::StatusCode::kFailedPrecondition,
                              epoch < ours ? Reason::kStaleEpoch : Reason::kFutureEpoch,
                              absl::StrCat("seal of epoch ", epoch, ", the server is in ", ours)));
  }
  if (!Is(Mutant::kPrepareSealed)) Feed(SealInput{});
  std::optional<SealAnswer> answer = fsm_.Sealed();
  if (Is(Mutant::kPrepareSealed)) answer = SealAnswer{fsm_.round(), false};
  if (!answer.has_value()) {
    deps_.world->Met(Cover::kSealWaits);
    after_durable_.push_back([=, this] { Seal(epoch, save, done); });
    return;
  }
  if (Is(Mutant::kForgetPrepared)) answer->prepared = false;
  JobPlan sealed = fsm_.plan();
  sealed.sealed_epoch = Is(Mutant::kSealNotSaved) ? 0 : epoch;
  const absl::Status saved = save(sealed);
  if (!Alive()) return;
  if (!saved.ok()) {
    deps_.storage_failed(saved);  // Whoever asked sees a server that is away, and asks again.
    return;
  }
  done(*answer);
}

void SimEngine::Adopt(const JobPlan& plan, const std::function<absl::Status()>& save,
                      const std::function<void(absl::Status)>& done) {
  if (!failure_.ok() || plan.epoch.epoch <= fsm_.plan().epoch.epoch) return done(failure_);
  if (fsm_.round() < plan.epoch.start_round) {
    deps_.world->Met(Cover::kAdoptWaits);
    after_apply_.push_back([=, this] { Adopt(plan, save, done); });
    return;
  }
  if (Is(Mutant::kAdoptUnflushed)) return AdoptFlushed(plan, save, done);
  log_->EndEpoch(plan.epoch.start_round, OnStrand([=, this](const absl::Status& status) {
                   if (!Alive()) return;
                   if (status.ok()) {
                     AdoptFlushed(plan, save, done);
                   } else {
                     deps_.storage_failed(status);
                   }
                 }));
}

void SimEngine::AdoptFlushed(const JobPlan& plan, const std::function<absl::Status()>& save,
                             const std::function<void(absl::Status)>& done) {
  const EpochRecord before = fsm_.plan().epoch;
  if (!failure_.ok() || plan.epoch.epoch <= before.epoch) return done(failure_);
  if (reducing_ != 0) {
    after_reduce_.push_back([=, this] { AdoptFlushed(plan, save, done); });
    return;
  }
  const absl::Status saved = save();
  if (!Alive()) return;
  if (!saved.ok()) {
    deps_.storage_failed(saved);
    return;
  }
  if (plan.servers.front() == deps_.server_id) deps_.oracle->OnEpoch(plan.epoch);
  deps_.oracle->OnAdopted(deps_.server_id, plan.epoch, deps_.damaged);
  JobPlan as_seen = plan;
  if (Is(Mutant::kOldDivisor)) {
    for (ContributorSet& set : as_seen.epoch.contributors) set.divisor = before.world();
  }
  Effects effects;
  const absl::Status adopted = fsm_.Adopt(as_seen, deps_.window_extents, &effects);
  if (adopted.ok()) {
    GoOver(before);
    CarryOut(effects);
  }
  if (Alive()) done(adopted);
}

void SimEngine::GoOver(const EpochRecord& before) {
  const EpochRecord& epoch = fsm_.plan().epoch;
  log_->BeginEpoch(epoch.epoch, epoch.start_round);
  if (deps_.world->tracing()) {
    deps_.world->Trace(deps_.node,
                       absl::StrCat("epoch ", epoch.epoch, " from round ", epoch.start_round, ", ",
                                    epoch.world(), " of ", before.world(), " trainers"));
  }
  deps_.world->Met(epoch.world() == before.world() ? Cover::kReplaced : Cover::kOtherWorld);
  if (epoch.init_again) deps_.world->Met(Cover::kInitDropped);
  contributions_.ReleaseAll();
  arrivals_.clear();
  has_gradient_.clear();
  prepare_waiting_.reset();
  ahead_.clear();
  if (epoch.init_again) {
    checkpointer_.DropInitial();
    staged_.clear();
  }
  const Tick now = Now();
  for (uint32_t slot = 0; slot < sinks_.size(); ++slot) {
    if (sinks_[slot] == nullptr) continue;
    sinks_[slot]->OnError(
        ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kStaleEpoch, "attach again"));
    sinks_[slot] = nullptr;
    seats_[slot].away_since = now;
    seats_[slot].held_until = now + kReturnWait;
  }
  sinks_.resize(epoch.seats());
  seats_.resize(epoch.seats());
  const auto is_new = [&before](const Member& member) {
    return !before.Holds(member.slot, member.incarnation);
  };
  const bool newcomers = std::any_of(epoch.members.begin(), epoch.members.end(), is_new);
  for (const Member& member : epoch.members) {
    if (is_new(member)) seats_[member.slot] = Seat();
    if (newcomers) seats_[member.slot].away_since = now;
    WatchLease(member.slot);
  }
  absl::StatusOr<Contributions> made =
      Contributions::Create(fsm_.layout(), fsm_.owned().size(), epoch, deps_.window_extents);
  if (made.ok()) contributions_ = *std::move(made);
}

bool SimEngine::AnybodyOpen() const {
  return std::any_of(sinks_.begin(), sinks_.end(),
                     [](const auto& sink) { return sink != nullptr; });
}

bool SimEngine::SlotOpen(uint32_t slot) const {
  return slot < sinks_.size() && (sinks_[slot] != nullptr || Now() < seats_[slot].held_until);
}

void SimEngine::WatchLease(uint32_t slot) {
  if (!on_seat_free_ || ended_ || slot >= seats_.size()) return;
  const Tick since = seats_[slot].away_since, now = Now();
  const Tick left = since + kLease > now ? since + kLease - now : 0;
  clock()->AfterInLife(left, life_, EventKind::kTimer, [this, slot, since] {
    if (slot >= seats_.size()) return;
    if (sinks_[slot] == nullptr && seats_[slot].away_since == since) TellSeatFree(slot);
  });
}

void SimEngine::TellSeatFree(uint32_t slot) {
  const Member* const member = fsm_.plan().epoch.Find(slot);
  if (member == nullptr || !on_seat_free_ || ended_) return;
  if (fsm_.InitIsFresh() && slot == fsm_.plan().epoch.lead_trainer()) {
    After(kLease, EventKind::kTimer, [this, slot] { WatchLease(slot); });
    return;
  }
  on_seat_free_(slot, member->incarnation, fsm_.Left(slot));
}

}  // namespace ballast::sim
