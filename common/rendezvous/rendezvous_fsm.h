// RendezvousFsm: how the ranks of a job agree on communicators among them.
//
// The communicators of an epoch come in generations, from 1. A generation has meetings, one per
// tag:
//
//   EMPTY -the lowest rank gives the id-> WRITTEN -every rank is ready-> OPEN
//
// The id of a meeting is written once. Only in OPEN may a rank use its communicator. A generation
// ends, for all its meetings and all that wait in them, when a rank gives it up, when a rank begins
// a newer one, when a meeting is not open at its time limit, and when the epoch is sealed or over.
// A rank says with which id it is ready, so a meeting opens with one id only, also after the home
// has restarted and has forgotten the written ids: the ranks' calls bring them back.
//
// Pure: calls and times in, effects out; no thread, clock or I/O. Memory per job: at most kTagsMax
// ids and a call per rank in each, and kUsedIdsMax ids.
// Comes from: the job's home. Goes to: its driver, which answers the calls.
// Thread safety: thread-compatible.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rendezvous/rendezvous_errors.h"
#include "common/rendezvous/rendezvous_types.h"

namespace ballast::rendezvous {

class RendezvousFsm {
 public:
  // Of the job named `job`, in `epoch`.
  RendezvousFsm(std::string job, Epoch epoch, Listening listening);

  // At `now` the job is in `epoch`. Every call of an earlier one that waits ends with STALE_EPOCH,
  // and so does one of this epoch when it is sealed. A sealed epoch stays so.
  void OnEpoch(std::chrono::nanoseconds now, const Epoch& epoch, Effects* effects);

  // A rank was heard of, at `heard.at`; news older than the last change nothing.
  void OnHeard(uint32_t slot, const Heard& heard);

  // A call at the time `now`: is answered by an Answer of its ticket, now or later. Errors: those
  // of client/cpp/ballast/rendezvous.h. A refused call changes nothing, except that its rank was
  // heard.
  void OnCall(std::chrono::nanoseconds now, Ticket ticket, const Call& call, Effects* effects);

  // It is `now`: calls and meetings whose time is over end.
  void OnDue(std::chrono::nanoseconds now, Effects* effects);
  // When the next of them is over, for OnDue; max() when nothing waits for a time.
  std::chrono::nanoseconds next_due() const;

  // The job is over at its home, or the home ends: every call that waits gets `why`.
  void OnEnd(const absl::Status& why, Effects* effects);

  const Epoch& epoch() const { return epoch_; }
  // Whether every rank may use the communicator of that tag of the newest generation.
  bool is_open(const std::string& tag) const;
  bool anybody_waits() const;

 private:
  struct Waiter {
    Ticket ticket = 0;
    Act act = Act::kExchange;
    std::chrono::nanoseconds due{0};
  };
  struct Meeting {
    std::string id;  // empty: not written
    std::chrono::nanoseconds timeout{0};
    std::chrono::nanoseconds due{0};
    bool open = false;
    std::map<uint32_t, Waiter> waiting;     // by slot
    std::map<uint32_t, std::string> ready;  // slot -> the id of its communicator
    std::set<uint32_t> came;
  };

  // Known facts about the process in a seat.
  struct SeatState {
    std::chrono::nanoseconds listens_since{0};
    uint32_t since_epoch = 0;  // as RankHeard::since_epoch
    bool heard = false;
    Heard last;
  };

  uint32_t leader() const { return epoch_.ranks.begin()->first; }
  absl::Status CheckSeat(const Call& call) const;
  // Whether the call is allowed. Errors as OnCall.
  absl::Status CheckAct(const Call& call) const;
  absl::Status CheckId(const Call& call) const;
  // The meeting of the call, if it exists.
  const Meeting* Find(const Call& call) const;
  // As Find, and makes it.
  Meeting* Enter(std::chrono::nanoseconds now, const Call& call, Effects* effects);
  void Exchange(Meeting* meeting, const Call& call, Effects* effects);
  void Ready(Meeting* meeting, const Call& call, Effects* effects);
  void Write(Meeting* meeting, const Call& call, Effects* effects);
  void TellId(Meeting* meeting, Effects* effects);  // to the ranks that wait for it
  void OpenIfAllReady(Meeting* meeting, Effects* effects);
  void GiveUp(const Call& call, Effects* effects);
  void Begin(const Call& call, Effects* effects);
  // The call waits, in the place of an earlier one of its rank.
  void Wait(std::chrono::nanoseconds now, Ticket ticket, const Call& call, Meeting* meeting,
            Effects* effects);
  Reply RollCall(std::chrono::nanoseconds now) const;
  RankHeard HeardOf(std::chrono::nanoseconds now, uint32_t slot) const;
  std::vector<Missing> MissingIn(std::chrono::nanoseconds now, const Meeting& meeting) const;
  // Answers the calls that wait in the meeting by `act` with `reply`.
  void AnswerAll(Meeting* meeting, Act act, const Reply& reply, Effects* effects);
  // The generation is over: every call that waits gets `why`.
  void EndGeneration(const absl::Status& why, Effects* effects);

  const std::string job_;
  Epoch epoch_;
  uint32_t generation_ = 0;                  // the newest; 0: none in this epoch
  absl::Status ended_;                       // why it is over; OK: it is not
  std::map<std::string, Meeting> meetings_;  // by tag, of the newest generation
  std::deque<std::string> used_;             // written ids, the newest last
  const std::chrono::nanoseconds lease_;
  std::map<uint32_t, SeatState> seats_;  // by slot, of each rank of the epoch
};

}  // namespace ballast::rendezvous
