// The answer to a trainer that names a job which this server does not have, or which is another
// tenant's: one function, so that the two answers do not differ.
// Comes from: server/rpc, Audience. Goes to: trainers. Thread safety: pure function.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/reason.h"

namespace ballast::server {

// NOT_FOUND UNKNOWN_JOB.
inline absl::Status NoJobHere(uint64_t job) {
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("this server has no job ", JobIdText(job), "; attach again"));
}

}  // namespace ballast::server
