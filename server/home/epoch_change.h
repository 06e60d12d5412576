// EpochChange: how a job passes from one set of trainers to the next. Every server seals the old
// epoch (it prepares no round of it any more) and says where it stands; from the answers of all
// follows the round the new epoch starts with. The home adopts the new record first, which makes it
// final, then the others.
//
//   SEALING -all answers-> ADOPTING -all adopted-> DONE
//
// Pure: answers in, the new plan out; no thread, clock or I/O.
// Comes from: HomeJob at the job's home. Goes to: HomeJob.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/round/round_types.h"

namespace ballast::server {

// The trainers that come, and those that go.
struct SeatChanges {
  std::map<uint32_t, uint64_t> newcomers;      // slot -> incarnation
  std::map<uint32_t, std::string> identities;  // slot -> Member::identity of a newcomer
  std::set<uint32_t> gone;                     // in a variable world: slots that become empty
  uint32_t min_world = 0;                      // that the newcomers ask for; 0: none
};

// Whether `epoch` may continue without `gone`: a trainer stays, and no fewer than its min_world.
bool MayShrink(const EpochRecord& epoch, const std::map<uint32_t, uint64_t>& gone);

// Trainers of a variable world that begins again: it is empty, and these ask for seats.
struct Gathering {
  std::map<uint32_t, uint64_t> asking;  // slot -> incarnation
  uint32_t world = 1;                   // the largest that one of them names
  uint32_t min_world = 1;               // likewise
  bool over = false;                    // a lease has passed since the first one asked

  // Whether it begins with them: all seats of the world are asked for, or it has been waited for
  // the others and these are enough.
  bool Complete() const { return Missing().empty() || (over && asking.size() >= min_world); }
  // Seats of the world that no trainer asks for, ascending.
  std::vector<uint32_t> Missing() const;
};

// How many trainers the next epoch may have.
struct WorldGrant {
  uint32_t wanted = 0;
  uint32_t granted = 0;  // by every server; at most `wanted`
  absl::Status refusal;  // why not more: OVER_QUOTA; OK: a server lacks the memory
};

class EpochChange {
 public:
  // Changes the epoch of `plan` to one of at most `world` trainers.
  explicit EpochChange(JobPlan plan, uint32_t world = UINT32_MAX)
      : plan_(std::move(plan)), world_(world) {}

  // A server's answer; the first of each counts.
  void OnSealed(uint32_t server, const SealAnswer& answer) { answers_.emplace(server, answer); }
  bool AllSealed() const { return answers_.size() == plan_.servers.size(); }

  // The grant of the servers heard so far.
  WorldGrant Grant() const;

  // The plan of the next epoch: `changes` are made, all other seats stay as they are. A newcomer
  // wins over the end of the process before it. A process that leaves keeps its seat
  //   - if no member would remain,
  //   - if fewer than min_world would remain (the lowest slots are kept first),
  //   - if it is the lead trainer and no round has changed the initial weights yet: no other
  //     process could upload those that a server lacks, or loses again.
  // Start round, of M = the newest open round: M + 1 when every server has prepared M (the round
  // will be applied for certain), else M (it is run again).
  // AllSealed() must hold. Errors: DATA_LOSS STATE_LOST when the answers contradict each other.
  absl::StatusOr<JobPlan> NextPlan(const SeatChanges& changes) const;

 private:
  absl::StatusOr<uint64_t> StartRound() const;
  std::vector<Member> NextMembers(const SeatChanges& changes, bool keep_lead) const;

  const JobPlan plan_;
  const uint32_t world_;
  std::map<uint32_t, SealAnswer> answers_;
};

}  // namespace ballast::server
