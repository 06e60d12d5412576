// Seating: decides at the home which process gets which seat of a job.
//
// A process that asks for a seat waits until the seat's earlier process is gone. In an inhabited
// world it then becomes a member of the next epoch. An empty variable world does not begin with the
// first process to ask, which would train alone: its newcomers wait for each other, at most for a
// lease (docs/decisions/012). Members of a variable world that leave, or whose lease runs out, lose
// their seats.
//
// Pure: no thread, clock or I/O. Comes from: HomeJob. Goes to: HomeJob, EpochChange.
// Thread safety: thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "server/home/epoch_change.h"
#include "server/home/home_types.h"
#include "server/home/waiting_room.h"

namespace ballast::server {

class Seating {
 public:
  // The job's taken slots. A fixed world always counts as inhabited.
  enum class Occupancy : uint8_t {
    kInhabited,  // newcomers join one by one
    kUnseen,     // the servers have started again, and no trainer was seen yet
    kEmpty,      // the job rested, or every member has left
  };

  // `rules` outlives it.
  Seating(const home::Rules* rules, Occupancy occupancy) : rules_(rules), occupancy_(occupancy) {}

  WaitingRoom* room() { return &room_; }
  const WaitingRoom& room() const { return room_; }
  // Whether newcomers wait for each other.
  bool gathers() const { return occupancy_ != Occupancy::kInhabited; }

  // A process without a seat asks for one of the job of `plan`. SPEC_MISMATCH if there is no such
  // seat. With `made` the seat is checked for a live process; otherwise the process is a newcomer
  // at once, since no streams are open while the job is made or woken.
  void Ask(const home::AttachInput& input, const JobPlan& plan, bool made,
           std::chrono::nanoseconds now, home::Effects* effects);
  // A member of `epoch` has called.
  void OnMember(uint32_t slot, uint64_t incarnation);
  // The seat of a process that asks was looked at.
  void OnSeen(const home::SeatSeenInput& input, const JobPlan& plan, std::chrono::nanoseconds now,
              home::Effects* effects);
  // Looks at the seat again, if that process still asks for it.
  void OnDue(const home::SeatDueInput& due, const JobPlan& plan, home::Effects* effects);
  // A member of a variable world is gone. `next`: the epoch of `plan`, or its successor if already
  // on record.
  void OnFree(const home::SeatFreeInput& input, const JobPlan& plan, const EpochRecord& next,
              std::chrono::nanoseconds now, home::Effects* effects);
  // Looks after the seats of newcomers that wait for each other.
  void AwaitNewcomers(const JobPlan& plan, std::chrono::nanoseconds now, home::Effects* effects);
  // A durable job does not keep its place for trainers that took seats and opened no stream.
  void AwaitTrainers(const JobPlan& plan, home::Effects* effects) const;

  // Whether the next epoch would have other members than `epoch`.
  bool WantsChange(const EpochRecord& epoch) const;
  // How many trainers the epoch after `epoch` wants, now. The seats of those that go are counted:
  // some may have to be kept.
  uint32_t WorldWanted(const EpochRecord& epoch) const;
  // The trainers that come and go in the epoch after that of `plan`, for which WorldWanted was
  // asked of every server. Newcomers for which there is no room get OVER_QUOTA or OVER_BUDGET.
  // Those that came since wait for the epoch after it.
  SeatChanges TakeChanges(const JobPlan& plan, const WorldGrant& grant, home::Effects* effects);
  // Answers every process whose seat is settled by the epoch of `plan`.
  void Settle(const JobPlan& plan, home::Effects* effects);

 private:
  bool HasLeft(uint32_t slot, uint64_t incarnation) const;
  void SomebodyIsThere();
  // A newcomer's seat is free, and newcomers wait for each other. Returns whether it waits on.
  bool Gather(uint32_t slot, const JobPlan& plan, std::chrono::nanoseconds now,
              home::Effects* effects);
  void BeginAgain(const Gathering& gathering, const EpochRecord& epoch);

  const home::Rules* rules_;
  WaitingRoom room_;
  Occupancy occupancy_;
  // Members whose lease ran out, or that left: they lose their seats with the next epoch.
  std::map<uint32_t, uint64_t> gone_;  // slot -> incarnation
  std::map<uint32_t, uint64_t> left_;  // slot -> incarnation; have said their Leave
};

}  // namespace ballast::server
