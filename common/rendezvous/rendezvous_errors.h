// The rendezvous' errors for refused ranks and impossible communicators: the texts, in one place.
// Comes from: RendezvousFsm. Goes to: trainers. Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rendezvous/rendezvous_types.h"

namespace ballast::rendezvous {

// A rank that a meeting lacks at its time limit.
struct Missing {
  RankHeard rank;
  bool came = false;  // it has asked for the id, or given it, and is not ready
};

// "in reduce-scatter of bucket 7 of round 812"; empty when the rank has said nothing.
std::string DoingText(const Doing& doing);

// FAILED_PRECONDITION STALE_EPOCH: `call` is of an earlier epoch than `epoch`, or of one that ends.
absl::Status StaleEpoch(const std::string& job, uint32_t called, const Epoch& epoch);
// FAILED_PRECONDITION FUTURE_EPOCH.
absl::Status FutureEpoch(const std::string& job, const Call& call, const Epoch& epoch);
// INVALID_ARGUMENT BAD_ARGUMENT: there is no such seat in the epoch.
absl::Status OutsideTheWorld(const std::string& job, const Call& call, const Epoch& epoch);
// FAILED_PRECONDITION WRONG_INCARNATION: another process holds the seat.
absl::Status SeatOfAnother(const std::string& job, const Call& call);
// INVALID_ARGUMENT BAD_ARGUMENT unless generation, tag, id and time limit of the call can be.
absl::Status CheckForm(const std::string& job, const Call& call);
// INVALID_ARGUMENT BAD_ARGUMENT: a rank that does not lead gives an id, or the leader gives none.
absl::Status NotTheGiver(const std::string& job, const Call& call, uint32_t leader);
// INVALID_ARGUMENT BAD_ARGUMENT: the id was used before in this job.
absl::Status UsedId(const std::string& job, const Call& call);
// INVALID_ARGUMENT CONFLICT: `call` has another id than `written`.
absl::Status OtherId(const std::string& job, const Call& call, const std::string& written);
// RESOURCE_EXHAUSTED OVER_BUDGET: the generation has kTagsMax tags already.
absl::Status TooManyTags(const std::string& job, const Call& call);
// ABORTED RENDEZVOUS_ENDED, all four.
absl::Status AlreadyOpen(const std::string& job, const Call& call);
absl::Status OlderGeneration(const std::string& job, const Call& call, uint32_t newest);
absl::Status NewerBegun(const std::string& job, uint32_t generation, const Call& call);
absl::Status GivenUp(const std::string& job, const Call& call);
// DEADLINE_EXCEEDED TRAINER_LOST, naming each rank, when it was heard and in what. Without one,
// which only a defect of ours can lead to, the text says that.
absl::Status NotThere(const std::string& job, uint32_t epoch, const std::vector<Missing>& missing,
                      std::chrono::nanoseconds timeout);

}  // namespace ballast::rendezvous
