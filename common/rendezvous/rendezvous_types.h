// Calls to the rendezvous of a job and its answers, as plain values.
// Comes from: the calls of trainers. Goes to: RendezvousFsm, its driver.
// Thread safety: plain values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rendezvous/doing.h"

namespace ballast::rendezvous {

// Limits of a rank's messages.
inline constexpr size_t kIdBytesMax = kRendezvousIdBytesMax;
inline constexpr size_t kTagBytesMax = kRendezvousTagBytesMax;
inline constexpr size_t kTagsMax = kRendezvousTagsMax;  // of a generation
inline constexpr size_t kWhyBytesMax = 256;             // longer ones are cut
// The home remembers this many of a job's newest ids and rejects their reuse.
inline constexpr size_t kUsedIdsMax = 256;
// The longest that a call waits for its answer; the rank then asks again.
inline constexpr std::chrono::seconds kWaitMax{30};
// The longest time limit of a meeting.
inline constexpr std::chrono::hours kTimeoutMax{24};

// Numbers equal ballast.v1.RendezvousAct.
enum class Act : uint8_t {
  kExchange = 1,  // gives the id (lowest slot), or waits for it
  kReady = 2,     // has made the communicator of `id`, and waits for the others
  kGiveUp = 3,    // ends the generation for all
  kRollCall = 4,  // asks when each rank was heard last
};
inline constexpr auto kLastAct = Act::kRollCall;

// A call to answer. The driver counts them, from 1 on.
using Ticket = uint64_t;

struct Call {
  uint32_t epoch = 0;
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  std::string identity;  // of the caller, as a URI; empty: the server has no security
  Act act = Act::kExchange;
  uint32_t generation = 0;
  std::string tag;
  std::string id;
  std::string why;                      // of kGiveUp
  std::chrono::nanoseconds timeout{0};  // of the meeting; its first call counts
  std::chrono::nanoseconds wait{0};     // of this call; more than kWaitMax is kWaitMax
  Doing doing;
};

// A process in a seat of the epoch.
struct Process {
  uint64_t incarnation = 0;
  std::string identity;  // a URI; empty: the seat needs none

  bool operator==(const Process&) const = default;
};

struct Epoch {
  uint32_t number = 0;
  std::map<uint32_t, Process> ranks;  // by slot; not empty
  bool sealed = false;                // another epoch will follow
};

// Since when the home listens for the ranks of a job, and the lease of their seats.
struct Listening {
  std::chrono::nanoseconds since{0};
  std::chrono::nanoseconds lease{0};
};

struct RankHeard {
  uint32_t slot = 0;
  bool heard = false;
  // Since then it was not heard: its last sign of life, or, where there was none, the time from
  // which on the home listens for this process.
  std::chrono::nanoseconds ago{0};
  Doing doing;
  // The first epoch of the process in this seat; 0: it had the seat when the home began to listen.
  uint32_t since_epoch = 0;
};

struct Reply {
  bool over = false;  // false: the call's wait has passed, or a later call took its place
  std::string id;     // of kExchange
  std::vector<RankHeard> ranks;  // of kRollCall, ascending slot
  uint32_t generation = 0;       // of kRollCall: the newest; 0: none
  std::string ended;             // of kRollCall: why it is over; empty: still running
  // Of kRollCall: after this silence of its process a seat is free for another one.
  std::chrono::nanoseconds lease{0};
};

struct Answer {
  Ticket ticket = 0;
  absl::StatusOr<Reply> reply = absl::UnknownError("");
};

// The driver's work after a step.
struct Effects {
  std::vector<Answer> answers;
};

}  // namespace ballast::rendezvous
