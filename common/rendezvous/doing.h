// A trainer's activity on a communicator among the trainers, and when it was last heard from.
// Comes from: heartbeats, calls of the rendezvous. Goes to: texts about a missing rank. Thread
// safety: plain values.
#pragma once

#include <chrono>
#include <cstdint>

namespace ballast {

// Numbers equal ballast.v1.CollectivePhase.
enum class CollectivePhase : uint8_t {
  kNone = 0,  // not told
  kInit = 1,
  kAgreement = 2,
  kReduceScatter = 3,
  kPush = 4,
  kPull = 5,
  kAllGather = 6,
};
inline constexpr auto kLastCollectivePhase = CollectivePhase::kAllGather;

// The current or last activity of a rank.
struct Doing {
  CollectivePhase phase = CollectivePhase::kNone;
  uint32_t bucket = 0;
  uint64_t round = 0;  // 0: none

  bool operator==(const Doing&) const = default;
};

// A sign of life of a rank.
struct Heard {
  std::chrono::nanoseconds at{0};  // of the clock of the process that heard it
  Doing doing;
};

}  // namespace ballast
