#include "server/home/seating.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/faults/mutant.h"
#include "server/home/home_errors.h"

namespace ballast::server {
namespace {

// How often a seat that still looks held is looked at again.
constexpr std::chrono::milliseconds kSeatPoll{100};

}  // namespace

// --- Coming -------------------------------------------------------------------------------------

void Seating::Ask(const home::AttachInput& input, const JobPlan& plan, bool made,
                  std::chrono::nanoseconds now, home::Effects* effects) {
  const AttachCall& call = input.call;
  const std::string difference = FirstDifference(plan.spec, call.spec);
  if (!difference.empty() || call.slot >= call.spec.world) {
    effects->push_back(
        home::RefuseAttach{input.ticket, home::NoSuchSeat(call, plan.spec, difference)});
    return;
  }
  const std::chrono::nanoseconds wait = rules_->WaitOf(call);
  Waiter waiter{.ticket = input.ticket,
                .call = call.call,
                .incarnation = call.incarnation,
                .identity = call.caller.uri(),
                .world = call.spec.world,
                .min_world = BALLAST_MUTANT(kShrinkTooFar) ? 1 : call.min_world,
                .until = now + wait,
                .give_up = now + rules_->takeover_wait};
  // A process that calls again does not wait longer for the one before it.
  const Waiter* const before = room_.Find(call.slot);
  if (made && before != nullptr && before->incarnation == call.incarnation) {
    waiter.give_up = std::min(waiter.give_up, before->give_up);
  }
  room_.Wait(call.slot, waiter, "a later call for the same seat took its place", effects);
  if (made) {
    effects->push_back(home::LookAtSeat{plan.job, call.slot, input.ticket});
  } else {
    room_.SetNewcomer(call.slot);
  }
}

void Seating::OnMember(uint32_t slot, uint64_t incarnation) {
  if (!HasLeft(slot, incarnation)) SomebodyIsThere();
}

void Seating::SomebodyIsThere() {
  occupancy_ = Occupancy::kInhabited;
  room_.EndGathering();
}

void Seating::OnSeen(const home::SeatSeenInput& input, const JobPlan& plan,
                     std::chrono::nanoseconds now, home::Effects* effects) {
  const Waiter* const waiter = room_.Find(input.slot);
  // Answered meanwhile, or another call for the seat took its place.
  if (waiter == nullptr || waiter->ticket != input.ticket) return;
  if (input.anybody) SomebodyIsThere();
  bool waits = now < waiter->give_up;
  if (!input.open) {
    room_.SetNewcomer(input.slot);
    if (!gathers() || !Gather(input.slot, plan, now, effects)) return;
    waits = true;
  }
  if (waits) {
    effects->push_back(home::Arm{kSeatPoll, home::SeatDueInput{input.slot, input.ticket}});
  } else {
    room_.Refuse(input.slot, home::SeatHeld(plan.spec.name, input.slot), effects);
  }
}

void Seating::OnDue(const home::SeatDueInput& due, const JobPlan& plan, home::Effects* effects) {
  const Waiter* const waiter = room_.Find(due.slot);
  if (waiter == nullptr || waiter->ticket != due.ticket) return;
  effects->push_back(home::LookAtSeat{plan.job, due.slot, due.ticket});
}

void Seating::AwaitNewcomers(const JobPlan& plan, std::chrono::nanoseconds now,
                             home::Effects* effects) {
  if (!gathers()) return;
  for (const auto& [slot, incarnation] : room_.newcomers()) {
    room_.SetGiveUp(slot, now + rules_->takeover_wait);
    effects->push_back(home::LookAtSeat{plan.job, slot, room_.Find(slot)->ticket});
  }
}

// Without durability EngineConfig::open_timeout ends the job.
void Seating::AwaitTrainers(const JobPlan& plan, home::Effects* effects) const {
  if (!IsDurable(plan)) return;
  const home::EpochDueInput due{plan.epoch.epoch, /*trainers=*/true};
  effects->push_back(home::Arm{rules_->trainerless, due});
}

bool Seating::Gather(uint32_t slot, const JobPlan& plan, std::chrono::nanoseconds now,
                     home::Effects* effects) {
  const bool first = room_.BeginGathering(now + rules_->lease);
  const Gathering gathering = room_.GatheringAt(now);
  if (gathering.Complete()) {
    BeginAgain(gathering, plan.epoch);
    return false;
  }
  if (first) {
    effects->push_back(home::Note{
        absl::StrCat("begins again: waits for slots ", absl::StrJoin(gathering.Missing(), ", "),
                     ", for a lease or until ", gathering.min_world, " are there")});
  }
  if (now < room_.Find(slot)->until) return true;
  room_.Refuse(slot, home::GatheredInVain(plan.spec.name, slot, gathering), effects);
  return false;
}

void Seating::BeginAgain(const Gathering& gathering, const EpochRecord& epoch) {
  const bool empty = occupancy_ == Occupancy::kEmpty;
  gathering.over ? BALLAST_PROBE(kBegunWithFewer) : BALLAST_PROBE(kBegunAgain);
  SomebodyIsThere();
  for (const Member& member : epoch.members) {
    // A process that might still live has a lease in the new epoch.
    if (gathering.over || empty) gone_[member.slot] = member.incarnation;
  }
}

// --- Going --------------------------------------------------------------------------------------

bool Seating::HasLeft(uint32_t slot, uint64_t incarnation) const {
  const auto it = left_.find(slot);
  return it != left_.end() && it->second == incarnation;
}

void Seating::OnFree(const home::SeatFreeInput& input, const JobPlan& plan, const EpochRecord& next,
                     std::chrono::nanoseconds now, home::Effects* effects) {
  // In a fixed world the seat is kept for its next process.
  if (!plan.spec.variable_world || !plan.epoch.Holds(input.slot, input.incarnation)) return;
  if (input.left) left_[input.slot] = input.incarnation;
  const bool all_left = std::all_of(
      next.members.begin(), next.members.end(),
      [this](const Member& member) { return HasLeft(member.slot, member.incarnation); });
  // The job will come to rest. Until it does, a newcomer must not get rounds of its own.
  if (all_left) {
    occupancy_ = Occupancy::kEmpty;
    AwaitNewcomers(plan, now, effects);
  }
  gone_[input.slot] = input.incarnation;
  if (!WantsChange(plan.epoch)) {
    gone_.erase(input.slot);
    return;
  }
  effects->push_back(home::Note{
      input.left ? "trainer has left; the world shrinks" : "lease ran out; the world shrinks",
      /*warning=*/false, static_cast<int>(input.slot)});
}

// --- The next epoch -----------------------------------------------------------------------------

bool Seating::WantsChange(const EpochRecord& epoch) const {
  const bool comes = !room_.newcomers().empty() && !gathers();
  return comes || MayShrink(epoch, gone_);
}

uint32_t Seating::WorldWanted(const EpochRecord& epoch) const {
  uint32_t world = epoch.world();
  if (gathers()) return world;
  for (const auto& [slot, incarnation] : room_.newcomers()) {
    world += epoch.Find(slot) == nullptr ? 1 : 0;
  }
  return world;
}

SeatChanges Seating::TakeChanges(const JobPlan& plan, const WorldGrant& grant,
                                 home::Effects* effects) {
  SeatChanges changes;
  if (!gathers()) {
    if (grant.granted < grant.wanted) room_.TurnAway(plan, grant, effects);
    changes.newcomers = room_.NewcomersWithin(plan.epoch, grant.granted);
    for (const auto& [slot, incarnation] : changes.newcomers) {
      const Waiter& waiter = *room_.Find(slot);
      changes.identities[slot] = waiter.identity;
      changes.min_world = std::max(changes.min_world, waiter.min_world);
    }
  }
  for (const auto& [slot, incarnation] : std::exchange(gone_, {})) {
    if (plan.epoch.Holds(slot, incarnation)) changes.gone.insert(slot);
  }
  return changes;
}

void Seating::Settle(const JobPlan& plan, home::Effects* effects) {
  for (const Member& seated : room_.Settle(plan, effects)) {
    OnMember(seated.slot, seated.incarnation);
  }
}

}  // namespace ballast::server
