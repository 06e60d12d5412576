// The answers to a caller that names an unknown job or another tenant's: one function for both, so
// that the two answers do not differ.
// Comes from: server/rpc, TrainerSessions, the job directory. Goes to: trainers, operators.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/text/names.h"

namespace ballast::server {

// NOT_FOUND UNKNOWN_JOB, to a trainer.
inline absl::Status NoJobHere(uint64_t job) {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("this server has no job ", JobIdText(job), "; attach again"));
}

// NOT_FOUND UNKNOWN_JOB, to an operator.
inline absl::Status NoJobOfName(const std::string& job) {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("there is no job \"", job, "\"; `ballastctl jobs list` shows ",
                                    "those there are"),
                       {.job = job});
}

}  // namespace ballast::server
