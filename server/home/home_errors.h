// Error messages of the home for trainers that get no seat, in one place.
// Comes from: HomeJob, HomeJobs. Goes to: trainers. Thread safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/home/epoch_change.h"
#include "server/jobs/trainer_calls.h"
#include "server/round/round_types.h"

namespace ballast::server::home {

// ALREADY_EXISTS NAME_IN_USE: why no new job can have the name of `plan`, which runs or, with
// `ended`, has ended, and what to do.
absl::Status NameTaken(const AttachCall& call, const JobPlan& plan, bool ended);
// DEADLINE_EXCEEDED ATTACH_TIMEOUT of a new job that still lacks `missing` of `world` slots.
absl::Status AttachTimedOut(const std::string& job, const std::vector<uint32_t>& missing,
                            uint32_t world);
// Likewise of one that begins again, to the process in `slot`.
absl::Status GatheredInVain(const std::string& job, uint32_t slot, const Gathering& gathering);
// FAILED_PRECONDITION SPEC_MISMATCH: the call describes another job than `spec`, as `difference`
// says, or, with an empty one, names a seat outside the job.
absl::Status NoSuchSeat(const AttachCall& call, const JobSpec& spec, const std::string& difference);
// Likewise to a process that asked before the job grew to `spec`.
absl::Status GrownSince(const JobSpec& spec, uint32_t slot);
// ALREADY_EXISTS SLOT_TAKEN: a live process holds the seat.
absl::Status SeatHeld(const std::string& job, uint32_t slot);
// RESOURCE_EXHAUSTED to a trainer that the next epoch has no room for: `grant.refusal`, or
// OVER_BUDGET: some server has memory for `grant.granted` trainers only.
absl::Status NoRoomFor(const std::string& job, uint32_t slot, const WorldGrant& grant);
// FAILED_PRECONDITION WRONG_INCARNATION to a member without its former seat.
absl::Status SeatLost(const std::string& job, uint32_t slot);
// UNAVAILABLE RECOVERING: the job has ended, and another call will wake it.
absl::Status JustRested(const std::string& job, uint32_t slot);
// FAILED_PRECONDITION JOB_FINISHED, the end of a job whose trainers took their seats and opened no
// stream within `time`.
absl::Status NoTrainerCame(const JobPlan& plan, std::chrono::nanoseconds time);
// NOT_FOUND UNKNOWN_JOB: the call says resume=must.
absl::Status NoJobToResume(const std::string& job);
// RESOURCE_EXHAUSTED OVER_BUDGET: `jobs` jobs are under way, as many as the limit allows.
absl::Status TooManyJobs(const std::string& job, size_t jobs, uint32_t jobs_max);
// RESOURCE_EXHAUSTED OVER_BUDGET: `tenant` has its half of these.
absl::Status ShareOfJobsTaken(const std::string& job, const std::string& tenant, uint32_t jobs_max);
// NOT_FOUND UNKNOWN_JOB, by its number.
absl::Status NoJobOfNumber(uint64_t job);
// `jobs` of one tenant wait for their trainers: RESOURCE_EXHAUSTED OVER_BUDGET.
absl::Status TooManyPending(const std::string& job, const std::string& tenant, size_t jobs);
// UNAVAILABLE SERVER_LOST.
absl::Status ServerLost(uint32_t server, const std::string& why);
// FAILED_PRECONDITION JOB_FINISHED: the job rests again, because a server could not open it.
absl::Status NotWoken(const std::string& job);
// UNAVAILABLE RECOVERING: `server` started again after it had opened the job; it is asked again.
absl::Status ClosedAgain(const std::string& job, uint32_t server);
// The error to report when `server` refuses a seal. Only the home writes epochs, so a server in a
// later epoch than that of `plan` knows more than the disk of the home, server `self`: DATA_LOSS
// STATE_LOST. Any other status as it is.
absl::Status SealError(const JobPlan& plan, uint32_t self, uint32_t server,
                       const absl::Status& status);

}  // namespace ballast::server::home
