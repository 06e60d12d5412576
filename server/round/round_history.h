// RoundHistory: the last finished rounds of a job at this server, for operators.
// Comes from: RoundMeter, once a round. Goes to: JobStatus, and from there to /statusz and
// `ballastctl rounds`.
// Thread safety: on the job's strand. Pure: no clock of its own. Memory: kRoundsKept entries,
// allocated when the job begins; a round allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ballast::server {

inline constexpr size_t kRoundsKept = 64;

enum class RoundEnd { kCommitted, kSkipped, kHalted };

struct FinishedRound {
  uint64_t round = 0;  // the first is 1
  RoundEnd end = RoundEnd::kCommitted;
  uint64_t ended_ns = 0;  // by the process' clock
  // From the first trainer's begin to this server's vote, to the decision, to the last weight.
  uint64_t collect_ns = 0;
  uint64_t vote_ns = 0;
  uint64_t step_ns = 0;
  uint64_t pushed_bytes = 0;  // payloads taken by this server
  double grad_norm = 0;       // global, as in Decision
  int last_slot = -1;         // whose begin or frame came last here; -1: none since a restart
};

class RoundHistory {
 public:
  // Overwrites the oldest entry once kRoundsKept are kept.
  void Add(const FinishedRound& round);
  // Oldest first.
  std::vector<FinishedRound> All() const;

 private:
  std::array<FinishedRound, kRoundsKept> ring_;
  uint64_t added_ = 0;
};

}  // namespace ballast::server
