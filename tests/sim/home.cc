#include "tests/sim/home.h"

#include <utility>

#include "common/base/reason.h"

namespace ballast::sim {
namespace {

constexpr Tick kSeatPoll = 100 * kMillisecond;
constexpr Tick kAskAgain = 500 * kMillisecond;
constexpr Tick kCallAgain = 50 * kMillisecond;
constexpr Tick kTakeoverWait = kLease + 2500 * kMillisecond;

absl::Status Refused(Reason reason, absl::string_view text) {
  return ReasonedError(absl::StatusCode::kFailedPrecondition, reason, text);
}

server::JobPlan Least(server::JobPlan plan, Mutant mutant) {
  if (mutant == Mutant::kShrinkTooFar) plan.epoch.min_world = 1;
  return plan;
}

}  // namespace

SimHome::SimHome(const Context& context, SimServer* server, const server::JobPlan& plan)
    : context_(context),
      server_(server),
      life_(context.world->Life(0)),
      plan_(Least(plan, context.mutant)),
      gathers_(plan.spec.variable_world) {}

void SimHome::After(Tick delay, std::function<void()> action) {
  clock()->AfterInLife(delay, life_, EventKind::kTimer, std::move(action));
}

void SimHome::Start() {
  sealed_ = std::exchange(plan_.sealed_epoch, 0) == plan_.epoch.epoch;
  if (sealed_) context_.world->Met(Cover::kChangeTakenUp);
  if (context_.mutant == Mutant::kForgetChange) sealed_ = false;
  change_.emplace(plan_);
  AdoptEverywhere(plan_);
}

// --- Seats --------------------------------------------------------------------------------------

void SimHome::Attach(const server::Member& who, bool resume, Told told) {
  if (plan_.epoch.Holds(who.slot, who.incarnation)) {
    SomebodyIsThere();
    if (!change_.has_value()) return told(plan_.epoch);
    survivors_[who.slot] = {who.incarnation, std::move(told)};
    return;
  }
  if (!resume) return told(Refused(Reason::kNameInUse, "the seat is not this process'"));
  if (!plan_.spec.variable_world && who.slot >= plan_.spec.world) {
    return told(Refused(Reason::kSpecMismatch, "no such seat"));
  }
  const auto asks = waiting_.find(who.slot);
  const bool again = asks != waiting_.end() && asks->second.incarnation == who.incarnation;
  waiting_[who.slot] = {who.incarnation, std::move(told)};
  if (again) return;  // Its call was lost on the way; somebody looks after the seat already.
  newcomers_.erase(who.slot);
  AwaitSeat(who.slot, who.incarnation, clock()->Now() + kTakeoverWait);
}

void SimHome::AwaitSeat(uint32_t slot, uint64_t incarnation, Tick give_up) {
  const auto waiting = waiting_.find(slot);
  if (waiting == waiting_.end() || waiting->second.incarnation != incarnation) return;
  const SimProcess* const process = server_->process();
  process->engine()->SlotOpen(slot, process->InLife([=, this](const server::SeatUse& use) {
    OnSeatUse(slot, incarnation, give_up, use);
  }));
}

void SimHome::OnSeatUse(uint32_t slot, uint64_t incarnation, Tick give_up, server::SeatUse use) {
  const auto waiting = waiting_.find(slot);
  if (waiting == waiting_.end() || waiting->second.incarnation != incarnation) return;
  if (use.anybody) SomebodyIsThere();
  const bool open = use.open;
  if (!open) {
    newcomers_[slot] = incarnation;
    if (!OnNewcomer()) return;
  }
  if (!open || clock()->Now() < give_up) {
    After(kSeatPoll, [=, this] { AwaitSeat(slot, incarnation, give_up); });
    return;
  }
  const Told told = std::move(waiting->second.told);
  waiting_.erase(waiting);
  newcomers_.erase(slot);  // It may have been free before.
  told(ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kSlotTaken, "a process holds it"));
}

// --- Coming together ----------------------------------------------------------------------------

void SimHome::SomebodyIsThere() {
  gathers_ = false;
  gathers_until_.reset();
}

// What every newcomer asks for.
uint32_t SimHome::LeastNow() const {
  return context_.mutant == Mutant::kShrinkTooFar ? 1 : context_.swarm->shape.min_world;
}

server::Gathering SimHome::GatheringNow() const {
  server::Gathering gathering{.asking = newcomers_, .world = plan_.spec.world};
  gathering.min_world = LeastNow();
  gathering.over = gathers_until_.has_value() && clock()->Now() >= *gathers_until_;
  return gathering;
}

// Whether the newcomer has to go on waiting. Its calls are repeated for ever, so nobody gives up.
bool SimHome::OnNewcomer() {
  if (!gathers_) {
    StartChange();
    return false;
  }
  if (!gathers_until_.has_value()) gathers_until_ = clock()->Now() + kLease;
  const server::Gathering gathering = GatheringNow();
  if (!gathering.Complete()) return true;
  BeginAgain(gathering);
  return false;
}

void SimHome::BeginAgain(const server::Gathering& gathering) {
  SomebodyIsThere();
  context_.world->Met(gathering.over ? Cover::kBegunWithFewer : Cover::kBegunAgain);
  for (const server::Member& member : plan_.epoch.members) {
    if (gathering.over) gone_[member.slot] = member.incarnation;
  }
  StartChange();
}

void SimHome::OnSeatFree(uint32_t slot, uint64_t incarnation, bool) {
  if (!plan_.spec.variable_world || !plan_.epoch.Holds(slot, incarnation)) return;
  gone_[slot] = incarnation;
  if (WantsChange()) {
    StartChange();
  } else {
    gone_.erase(slot);
  }
}

bool SimHome::WantsChange() const {
  const bool comes = !newcomers_.empty() && !gathers_;
  return sealed_ || comes || server::MayShrink(plan_.epoch, gone_);
}

// --- Sealing ------------------------------------------------------------------------------------

void SimHome::StartChange() {
  if (change_.has_value()) return;
  change_.emplace(plan_);
  const uint32_t epoch = plan_.epoch.epoch;
  server_->OnSeal(epoch, [this, epoch](const absl::StatusOr<server::SealAnswer>& answer) {
    OnSealed(epoch, 0, answer);
    if (!answer.ok()) return;
    for (uint32_t index = 1; index < plan_.servers.size(); ++index) SealPeer(index, epoch);
  });
}

void SimHome::SealPeer(uint32_t index, uint32_t epoch) {
  if (plan_.epoch.epoch != epoch || !change_.has_value() || change_->AllSealed()) return;
  context_.network->Ask(
      node(), index,
      [this, index, epoch](StreamServer* server, const auto& answer) {
        server->OnSeal(epoch, [=, this](const absl::StatusOr<server::SealAnswer>& sealed) {
          answer([=, this] { OnSealed(epoch, index, sealed); });
        });
      },
      [this, index, epoch](const absl::Status&) {
        After(kCallAgain, [=, this] { SealPeer(index, epoch); });
      });
}

void SimHome::OnSealed(uint32_t epoch, uint32_t index,
                       const absl::StatusOr<server::SealAnswer>& answer) {
  if (!change_.has_value() || plan_.epoch.epoch != epoch || change_->AllSealed()) return;
  if (!answer.ok()) {
    OnSealFailed(index, answer.status());
    return;
  }
  change_->OnSealed(plan_.servers[index], *answer);
  if (context_.mutant == Mutant::kStartFromHome && index == 0) {
    for (const uint32_t server : plan_.servers) change_->OnSealed(server, *answer);
  }
  if (change_->AllSealed()) WriteRecord();
}

void SimHome::OnSealFailed(uint32_t index, const absl::Status& status) {
  EndChange(status);
  if (index == 0) return;
  sealed_ = true;
  if (ReasonOf(status) == Reason::kJobFinished) return server_->process()->engine()->Fail(status);
  After(kAskAgain, [this, epoch = plan_.epoch.epoch] {
    if (plan_.epoch.epoch == epoch) StartChange();
  });
}

void SimHome::WriteRecord() {
  sealed_ = false;
  server::SeatChanges changes;
  if (!gathers_) {
    changes.newcomers = newcomers_;
    if (!newcomers_.empty()) changes.min_world = LeastNow();
  }
  for (const auto& [slot, incarnation] : std::exchange(gone_, {})) {
    if (plan_.epoch.Holds(slot, incarnation)) changes.gone.insert(slot);
  }
  const absl::StatusOr<server::JobPlan> next = change_->NextPlan(changes);
  if (!next.ok()) return EndChange(next.status());
  server_->OnAdopt(*next, [this, plan = *next](const absl::Status& status) {
    if (status.ok()) {
      AdoptEverywhere(plan);
    } else {
      EndChange(status);
    }
  });
}

// --- Adopting -----------------------------------------------------------------------------------

void SimHome::AdoptEverywhere(const server::JobPlan& plan) {
  if (plan_.epoch.epoch > plan.epoch.epoch || server_->process()->ended()) return;
  plan_ = plan;
  adopted_.clear();
  for (uint32_t index = 1; index < plan.servers.size(); ++index) {
    AdoptAt(index, plan);
  }
  if (plan.servers.size() == 1) EndChange(absl::OkStatus());
}

void SimHome::AdoptAt(uint32_t index, const server::JobPlan& plan) {
  if (plan_.epoch.epoch != plan.epoch.epoch || adopted_.count(index) != 0) return;
  context_.network->Ask(
      node(), index,
      [this, index, plan](StreamServer* server, const auto& answer) {
        server->OnAdopt(plan, [=, this](const absl::Status& status) {
          answer([=, this] { OnAdopted(index, plan, status); });
        });
      },
      [=, this](const absl::Status&) { After(kCallAgain, [=, this] { AdoptAt(index, plan); }); });
}

void SimHome::OnAdopted(uint32_t index, const server::JobPlan& plan, const absl::Status& status) {
  if (plan_.epoch.epoch != plan.epoch.epoch || !change_.has_value()) return;
  if (ReasonOf(status) == Reason::kJobFinished) return server_->process()->engine()->Fail(status);
  if (!status.ok()) {
    After(kAskAgain, [=, this] { AdoptAt(index, plan); });
    return;
  }
  adopted_[index] = status;
  if (adopted_.size() + 1 == plan.servers.size()) EndChange(absl::OkStatus());
}

void SimHome::EndChange(const absl::Status& status) {
  change_.reset();
  const server::EpochRecord& epoch = plan_.epoch;
  for (auto& [slot, call] : std::exchange(survivors_, {})) {
    if (!status.ok()) {
      call.told(status);
    } else if (epoch.Holds(slot, call.incarnation)) {
      SomebodyIsThere();
      call.told(epoch);
    } else {
      call.told(Refused(Reason::kWrongIncarnation, "the seat is not this process' any more"));
    }
  }
  for (auto& [slot, call] : std::exchange(waiting_, {})) {
    if (!status.ok()) {
      call.told(status);
    } else if (epoch.Holds(slot, call.incarnation)) {
      SomebodyIsThere();
      call.told(epoch);
    } else {
      waiting_[slot] = std::move(call);
    }
  }
  std::erase_if(newcomers_, [&](const auto& newcomer) {
    return !status.ok() || epoch.Holds(newcomer.first, newcomer.second);
  });
  if (newcomers_.empty()) gathers_until_.reset();
  if (status.ok() && WantsChange()) StartChange();
}

}  // namespace ballast::sim
