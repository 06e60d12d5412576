// WaitingRoom: the attach calls at a job's home that have no answer yet.
//
// In `waiting` are processes that ask for a seat; a newcomer is one of them whose seat was found
// free, so that it can get the seat in the next epoch. In `members` are processes that hold their
// seat already and attach again while the epoch changes; they learn of the new one.
//
// Pure: no thread, clock or I/O. Comes from: HomeJob. Goes to: HomeJob, as answers.
// Thread safety: thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/home/epoch_change.h"
#include "server/home/home_types.h"

namespace ballast::server {

struct Waiter {
  home::Ticket ticket = 0;
  uint64_t call = 0;  // AttachCall::call
  uint64_t incarnation = 0;
  std::string identity;  // Member::identity
  // For a process that asks for a seat of an existing job.
  uint32_t world = 1;
  uint32_t min_world = 1;
  std::chrono::nanoseconds until{0};    // when it stops to wait for other slots
  std::chrono::nanoseconds give_up{0};  // when it stops to wait for a process that holds its seat
};

class WaitingRoom {
 public:
  // A process asks for `slot`, and is no newcomer yet. An earlier call for the slot gets CANCELLED
  // `why`.
  void Wait(uint32_t slot, const Waiter& waiter, const std::string& why, home::Effects* effects);
  // A member of the epoch asks again.
  void WaitAsMember(uint32_t slot, const Waiter& waiter, home::Effects* effects);

  // Whether any process waits for a seat.
  bool occupied() const { return !waiting_.empty(); }
  // The process that asks for `slot`, or null.
  const Waiter* Find(uint32_t slot) const;
  // No process holds the slot that its waiter asks for.
  void SetNewcomer(uint32_t slot) { newcomers_[slot] = waiting_.at(slot).incarnation; }
  // The process that asks for `slot` waits until then for one that holds it.
  void SetGiveUp(uint32_t slot, std::chrono::nanoseconds at) { waiting_.at(slot).give_up = at; }
  // slot -> incarnation
  const std::map<uint32_t, uint64_t>& newcomers() const { return newcomers_; }

  // The call was hung up. Returns the incarnation of its process, if the call waited for `slot`.
  std::optional<uint64_t> HangUp(uint32_t slot, uint64_t call, home::Effects* effects);
  // Answers one process that waits for a seat with an error.
  void Refuse(uint32_t slot, const absl::Status& status, home::Effects* effects);
  // Answers all of them, and the members.
  void FailAll(const absl::Status& status, home::Effects* effects);
  // Answers those that wait for a seat: the job has ended, and the next call wakes it.
  void AskAgain(const std::string& job, home::Effects* effects);
  // Answers those that wait for a seat: the job has grown to `plan` since, and each of them asked
  // as a process of the smaller job.
  void RefuseUngrown(const JobPlan& plan, home::Effects* effects);
  // Answers every process whose seat is settled by the epoch of `plan`: the holders of its seats,
  // and former members. The others stay. Returns the processes with a seat.
  std::vector<Member> Settle(const JobPlan& plan, home::Effects* effects);
  // The newcomers, without those to new seats that would make a world larger than `world` of
  // `epoch`: the highest slots stay out.
  std::map<uint32_t, uint64_t> NewcomersWithin(const EpochRecord& epoch, uint32_t world) const;
  // Refuses the newcomers without room in the next epoch, as granted.
  void TurnAway(const JobPlan& plan, const WorldGrant& grant, home::Effects* effects);

  // The newcomers as a world that begins again; its time runs from BeginGathering on.
  Gathering GatheringAt(std::chrono::nanoseconds now) const;
  // Sets the time when the newcomers have waited for each other long enough. Returns false when
  // the time is set already.
  bool BeginGathering(std::chrono::nanoseconds until);
  void EndGathering() { gathers_until_.reset(); }

 private:
  void DropNewcomer(uint32_t slot);
  void RefuseAll(const std::function<absl::Status(uint32_t slot)>& why, home::Effects* effects);

  std::map<uint32_t, Waiter> waiting_;      // by slot
  std::map<uint32_t, Waiter> members_;      // by slot
  std::map<uint32_t, uint64_t> newcomers_;  // slot -> incarnation
  std::optional<std::chrono::nanoseconds> gathers_until_;
};

}  // namespace ballast::server
