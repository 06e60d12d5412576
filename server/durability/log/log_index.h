// The contents of a gradient log by round, and which record may follow: one place for the rules
// about epochs and repetitions. docs/formats/log.md lists them.
// Comes from: GradientLog (appends), log_scan (records found). Goes to: recovery, as rounds().
// Thread safety: thread-compatible, no I/O.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "server/durability/log/gradient_log.h"

namespace ballast::server {

class LogIndex {
 public:
  const std::map<uint64_t, LoggedRound>& rounds() const { return rounds_; }

  // Whether the record may follow those so far. INTERNAL, naming round and extent, for a second one
  // of the same or an older epoch, for anything but a decision in a decided round, and for ratios
  // of a round not prepared in their epoch.
  absl::Status Check(const LoggedExtent& extent) const;
  absl::Status Check(const PreparedRecord& record) const;
  absl::Status Check(const DecisionRecord& record) const;
  absl::Status Check(const RatiosRecord& record) const;

  // Takes the record; one that may not follow is skipped: the first stays. A PREPARED or RATIOS
  // repeated after its decision is taken where the first is gone.
  void Add(const LoggedExtent& extent);
  void Add(const PreparedRecord& record);
  void Add(const DecisionRecord& record);
  void Add(const RatiosRecord& record);

  // Forgets the rounds below `round`, except for vote and decision of the last of them.
  void TrimTo(uint64_t round);

  // Forgets records of epochs before `epoch` for the rounds from `start_round` on.
  void BeginEpoch(uint32_t epoch, uint64_t start_round);

  // Checks that the log has every extent that the vote counts. One whose squares sum to 0 may be
  // missing: none of its tensors had a gradient. INTERNAL naming the first missing extent.
  absl::Status CheckWhole(const PreparedRecord& record) const;

  // Null when nothing is known of the round.
  const LoggedRound* Find(uint64_t round) const;

 private:
  std::map<uint64_t, LoggedRound> rounds_;
};

}  // namespace ballast::server
