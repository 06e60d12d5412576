#include "server/round/round_history.h"

#include <algorithm>

namespace ballast::server {

void RoundHistory::Add(const FinishedRound& round) { ring_[added_++ % kRoundsKept] = round; }

std::vector<FinishedRound> RoundHistory::All() const {
  std::vector<FinishedRound> all;
  const uint64_t kept = std::min<uint64_t>(added_, kRoundsKept);
  all.reserve(kept);
  for (uint64_t i = added_ - kept; i < added_; ++i) all.push_back(ring_[i % kRoundsKept]);
  return all;
}

}  // namespace ballast::server
