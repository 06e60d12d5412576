// Rendezvous: how the trainers of a job agree on the communicators among them, over the job's home.
// The trainer in the lowest slot gives an id (for NCCL its unique id), and the others receive it.
// Each makes its communicator, says that it is ready, and uses it when every trainer is ready.
//
//   Exchange -> the id -> (make the communicator) -> Ready -> collectives
//                                  \-> GiveUp: all waiters hear why; the next generation begins
//
// An id is written once per (job, epoch, generation, tag), and is never used twice. The generation
// counts the communicators of an epoch, from 1. A newer generation, and the next epoch, end
// the older one for every trainer that waits.
// Comes from: Client::rendezvous(). Goes to: Control.Rendezvous of the job's home.
// C++17-clean. Thread safety: any thread calls any of it, beside the thread that uses the Client;
// the client outlives the calls. Client::Abort() ends every wait with CANCELLED.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::client {

// Most bytes of an id. NCCL's has 128.
inline constexpr size_t kRendezvousIdBytesMax = 1024;
// Most bytes of a tag, and most tags of a generation.
inline constexpr size_t kRendezvousTagBytesMax = 64;
inline constexpr size_t kRendezvousTagsMax = 16;

// What a rank does with its communicator. Numbers equal ballast.v1.CollectivePhase.
enum class CollectivePhase : uint8_t {
  kNone = 0,  // not told
  kInit = 1,
  kAgreement = 2,
  kReduceScatter = 3,
  kPush = 4,
  kPull = 5,
  kAllGather = 6,
};

// What a rank does now, or did last: "in reduce-scatter of bucket 7 of round 812".
struct Doing {
  CollectivePhase phase = CollectivePhase::kNone;
  uint32_t bucket = 0;
  uint64_t round = 0;  // 0: none
};

// A rank, as the home has heard of it last.
struct RankNews {
  uint32_t slot = 0;
  bool heard = false;  // since the home listens for it: since it took its seat, or the home started
  // When it was heard last; where it was not heard, since when the home listens for it.
  std::chrono::milliseconds ago{0};
  Doing doing;
  uint32_t since_epoch = 0;  // the process's first epoch; 0: not known, it is older than the home
};

struct RollCallReport {
  std::vector<RankNews> ranks;         // of the epoch, ascending slot
  uint32_t generation = 0;             // the newest of the epoch; 0: none
  std::string ended;                   // why that is over, as every rank reads it; empty: it is not
  std::chrono::milliseconds lease{0};  // a seat silent for longer may be taken; 0: not told
};

struct Meeting {
  uint32_t epoch = 0;       // Client::epoch() when the communicator was begun
  uint32_t generation = 1;  // from 1 in each epoch; the next one after GiveUp or a failure
  std::string tag;          // which communicator of the generation, [a-z0-9._-]{1,64}
  // How long a rank waits for the others. The first call of the meeting sets the limit for all.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// Errors of all calls but SetDoing. They change nothing at the home, unless it says otherwise:
//   FAILED_PRECONDITION STALE_EPOCH: the epoch is over, or is about to be; all communicators of it
//     are dead. Abort them, and begin again in the next epoch.
//   ABORTED RENDEZVOUS_ENDED: a rank gave this generation up, or a newer one has begun; the text
//     says which rank and why. Begin the next generation.
//   DEADLINE_EXCEEDED TRAINER_LOST: "rank 3 of epoch 12 did not arrive within 60 s (last heard 58 s
//     ago, in reduce-scatter of bucket 7 of round 812)". The generation is over, for all ranks.
//   INVALID_ARGUMENT BAD_ARGUMENT: a tag or id that is none, or too long; a slot outside the epoch;
//     an id of a rank that does not lead; an id that was used before.
//   INVALID_ARGUMENT CONFLICT: another id than the one that is written, with both checksums.
//   FAILED_PRECONDITION WRONG_INCARNATION: another process holds this seat.
//   NOT_FOUND UNKNOWN_JOB. RESOURCE_EXHAUSTED OVER_BUDGET: too many tags.
//   UNAVAILABLE: the home is away; from Exchange and Ready of a durable job only after
//     JobOptions::reconnect_timeout.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // The id of `meeting`, which is not open yet: ABORTED RENDEZVOUS_ENDED. The trainer in the lowest
  // slot of the epoch gives `id`, 1 to kRendezvousIdBytesMax opaque bytes; the others give an empty
  // one, and wait for it.
  virtual absl::StatusOr<std::string> Exchange(const Meeting& meeting, const std::string& id) = 0;

  // This rank has made its communicator of `id`. Returns when every rank of the epoch has. Only
  // then may a rank use it.
  virtual absl::Status Ready(const Meeting& meeting, const std::string& id) = 0;

  // Ends the generation of `meeting` for all ranks: `why` is what they read. At most 256 bytes of
  // it are kept. A generation that is over already stays so, and that is no error. As RollCall, it
  // does not wait for a home that is away.
  virtual absl::Status GiveUp(const Meeting& meeting, const std::string& why) = 0;

  // How the present epoch stands. A home that is away is asked for one second: UNAVAILABLE.
  virtual absl::StatusOr<RollCallReport> RollCall() = 0;

  // What this rank does now. It travels with heartbeats, every 0.5 s, and with the calls above;
  // with none before the first SetDoing, Exchange or Ready.
  virtual void SetDoing(const Doing& doing) = 0;
};

}  // namespace ballast::client
