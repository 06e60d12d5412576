// Rendezvous: the trainers of a job agree on their communicators through the job's home. The
// trainer in the lowest slot gives an id (for NCCL its unique id), and the others receive it. Each
// creates its communicator, reports Ready, and uses it when every trainer is ready.
//
//   Exchange -> the id -> (make the communicator) -> Ready -> collectives
//                                  \-> GiveUp: all waiters learn why; the next generation begins
//
// An id is written once per (job, epoch, generation, tag), and is never used twice. The generation
// counts the communicators of an epoch, from 1. A newer generation, and the next epoch, end
// the older one for every trainer that waits.
// Comes from: Client::rendezvous(). Goes to: Control.Rendezvous of the job's home.
// C++17-clean. Thread safety: any thread may call it, also while another uses the Client; the
// client outlives the calls. Client::Abort() ends every wait with CANCELLED.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/types.h"

namespace ballast::client {

using ::ballast::CollectivePhase;
using ::ballast::Doing;
using ::ballast::kRendezvousIdBytesMax;
using ::ballast::kRendezvousTagBytesMax;
using ::ballast::kRendezvousTagsMax;

// A rank's state at its latest heartbeat to the home.
struct RankNews {
  uint32_t slot = 0;
  bool heard = false;  // since it took its seat, or since the home's later start
  // Time since its latest heartbeat, or if there was none, since the home began to expect one.
  std::chrono::milliseconds ago{0};
  Doing doing;
  uint32_t since_epoch = 0;  // the process's first epoch; 0: not known, it is older than the home
};

struct RollCallReport {
  std::vector<RankNews> ranks;         // of the epoch, ascending slot
  uint32_t generation = 0;             // the newest of the epoch; 0: none
  std::string ended;                   // why that ended, as every rank reads it; empty: it has not
  std::chrono::milliseconds lease{0};  // a seat silent for longer may be taken; 0: not told
};

struct Meeting {
  uint32_t epoch = 0;       // Client::epoch() when the communicator was begun
  uint32_t generation = 1;  // from 1 in each epoch; the next one after GiveUp or a failure
  std::string tag;          // which communicator of the generation, [a-z0-9._-]{1,64}
  // Limit of a rank's wait for the others. The first call of the meeting sets it for all.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// Errors of all calls but SetDoing. They change nothing at the home, unless it says otherwise:
//   FAILED_PRECONDITION STALE_EPOCH: the epoch is over, or is about to be; all communicators of it
//     are dead. Abort them, and begin again in the next epoch.
//   ABORTED RENDEZVOUS_ENDED: a rank gave this generation up, or a newer one has begun; the text
//     says which rank and why. Begin the next generation.
//   DEADLINE_EXCEEDED TRAINER_LOST: "rank 3 of epoch 12 did not arrive within 60 s (last heard 58 s
//     ago, in reduce-scatter of bucket 7 of round 812)". The generation is over, for all ranks.
//   INVALID_ARGUMENT BAD_ARGUMENT: an invalid or too long tag or id; a slot outside the epoch;
//     an id from a rank that does not lead; a reused id.
//   INVALID_ARGUMENT CONFLICT: an id that differs from the written one, with both checksums.
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

  // Reports that this rank has created its communicator of `id`. Returns when every rank of the
  // epoch has. Only then may a rank use it.
  virtual absl::Status Ready(const Meeting& meeting, const std::string& id) = 0;

  // Ends the generation of `meeting` for all ranks, which read `why` as the reason. At most 256
  // bytes of it are kept. Succeeds when the generation has ended already. Like RollCall, it does
  // not wait for an unreachable home.
  virtual absl::Status GiveUp(const Meeting& meeting, const std::string& why) = 0;

  // State of the ranks in the present epoch. An unreachable home is retried for one second:
  // UNAVAILABLE.
  virtual absl::StatusOr<RollCallReport> RollCall() = 0;

  // Sets this rank's present work. Heartbeats report it every 0.5 s, as do the calls above; none
  // does before the first SetDoing, Exchange or Ready.
  virtual void SetDoing(const Doing& doing) = 0;
};

}  // namespace ballast::client
