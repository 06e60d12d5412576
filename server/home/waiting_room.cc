#include "server/home/waiting_room.h"

#include <algorithm>
#include <utility>

#include "server/home/home_errors.h"

namespace ballast::server {

void WaitingRoom::Wait(uint32_t slot, const Waiter& waiter, const std::string& why,
                       home::Effects* effects) {
  if (const Waiter* const before = Find(slot); before != nullptr) {
    effects->push_back(home::RefuseAttach{before->ticket, absl::CancelledError(why)});
  }
  waiting_[slot] = waiter;
  newcomers_.erase(slot);
}

void WaitingRoom::WaitAsMember(uint32_t slot, const Waiter& waiter, home::Effects* effects) {
  if (const auto before = members_.find(slot); before != members_.end()) {
    effects->push_back(home::RefuseAttach{
        before->second.ticket,
        absl::CancelledError("a later call of the same trainer took its place")});
  }
  members_[slot] = waiter;
}

const Waiter* WaitingRoom::Find(uint32_t slot) const {
  const auto it = waiting_.find(slot);
  return it == waiting_.end() ? nullptr : &it->second;
}

void WaitingRoom::DropNewcomer(uint32_t slot) {
  newcomers_.erase(slot);
  if (newcomers_.empty()) EndGathering();
}

std::optional<uint64_t> WaitingRoom::HangUp(uint32_t slot, uint64_t call, home::Effects* effects) {
  const auto it = waiting_.find(slot);
  if (it == waiting_.end() || it->second.call != call) return std::nullopt;
  const uint64_t incarnation = it->second.incarnation;
  effects->push_back(home::DropCall{it->second.ticket});
  waiting_.erase(it);
  DropNewcomer(slot);
  return incarnation;
}

void WaitingRoom::Refuse(uint32_t slot, const absl::Status& status, home::Effects* effects) {
  const auto it = waiting_.find(slot);
  effects->push_back(home::RefuseAttach{it->second.ticket, status});
  waiting_.erase(it);
  DropNewcomer(slot);
}

void WaitingRoom::FailAll(const absl::Status& status, home::Effects* effects) {
  for (auto* const calls : {&waiting_, &members_}) {
    for (const auto& [slot, waiter] : std::exchange(*calls, {})) {
      effects->push_back(home::RefuseAttach{waiter.ticket, status});
    }
  }
  newcomers_.clear();
  EndGathering();
}

void WaitingRoom::RefuseAll(const std::function<absl::Status(uint32_t slot)>& why,
                            home::Effects* effects) {
  for (const auto& [slot, waiter] : std::exchange(waiting_, {})) {
    effects->push_back(home::RefuseAttach{waiter.ticket, why(slot)});
  }
  newcomers_.clear();
  EndGathering();
}

void WaitingRoom::AskAgain(const std::string& job, home::Effects* effects) {
  RefuseAll([&job](uint32_t slot) { return home::JustRested(job, slot); }, effects);
}

void WaitingRoom::RefuseUngrown(const JobPlan& plan, home::Effects* effects) {
  RefuseAll([&plan](uint32_t slot) { return home::GrownSince(plan.spec, slot); }, effects);
}

std::vector<Member> WaitingRoom::Settle(const JobPlan& plan, home::Effects* effects) {
  std::vector<Member> seated;
  const auto settle = [&](uint32_t slot, const Waiter& waiter) {
    if (!plan.epoch.Holds(slot, waiter.incarnation)) return false;
    effects->push_back(home::GiveSeat{waiter.ticket, slot, plan});
    seated.push_back({slot, waiter.incarnation});
    return true;
  };
  for (const auto& [slot, waiter] : std::exchange(members_, {})) {
    if (settle(slot, waiter)) continue;
    effects->push_back(home::RefuseAttach{waiter.ticket, home::SeatLost(plan.spec.name, slot)});
  }
  std::erase_if(waiting_, [&](const auto& one) { return settle(one.first, one.second); });
  std::erase_if(newcomers_,
                [&](const auto& one) { return plan.epoch.Holds(one.first, one.second); });
  if (newcomers_.empty()) EndGathering();
  return seated;
}

std::map<uint32_t, uint64_t> WaitingRoom::NewcomersWithin(const EpochRecord& epoch,
                                                          uint32_t world) const {
  uint32_t seats = epoch.world();
  std::map<uint32_t, uint64_t> within;
  for (const auto& [slot, incarnation] : newcomers_) {
    if (epoch.Find(slot) != nullptr || ++seats <= world) within[slot] = incarnation;
  }
  return within;
}

void WaitingRoom::TurnAway(const JobPlan& plan, const WorldGrant& grant, home::Effects* effects) {
  const std::map<uint32_t, uint64_t> within = NewcomersWithin(plan.epoch, grant.granted);
  const std::map<uint32_t, uint64_t> newcomers = newcomers_;
  for (const auto& [slot, incarnation] : newcomers) {
    if (within.count(slot) == 0)
      Refuse(slot, home::NoRoomFor(plan.spec.name, slot, grant), effects);
  }
}

Gathering WaitingRoom::GatheringAt(std::chrono::nanoseconds now) const {
  Gathering gathering{.asking = newcomers_};
  for (const auto& [slot, incarnation] : newcomers_) {
    const Waiter& waiter = waiting_.at(slot);
    gathering.world = std::max(gathering.world, waiter.world);
    gathering.min_world = std::max(gathering.min_world, waiter.min_world);
  }
  gathering.over = gathers_until_.has_value() && now >= *gathers_until_;
  return gathering;
}

bool WaitingRoom::BeginGathering(std::chrono::nanoseconds until) {
  if (gathers_until_.has_value()) return false;
  gathers_until_ = until;
  return true;
}

}  // namespace ballast::server
