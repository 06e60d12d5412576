// How this room refuses a number: INVALID_ARGUMENT, BAD_HYPERPARAM. Comes from: the room's checks.
// Goes to: common/base. Thread safety: pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/reason.h"

namespace ballast {

inline absl::Status Refuse(const std::string& text) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadHyperparam, text);
}

}  // namespace ballast
