// Typed errors of the client: every absl::Status it returns carries a Reason and who is concerned.
// Comes from: the servers' ErrorDetail or the client itself. Goes to: callers, Python exceptions.
// C++17-clean. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ballast::client {

// Detail attached to a Status. Values of `reason` are ballast.v1.Reason (types.proto);
// `reason_name` is its name without the REASON_ prefix, e.g. "TRAINER_LOST".
struct ErrorInfo {
  int reason = 0;
  std::string reason_name;
  std::string job;
  uint64_t round = 0;
  int slot = -1;
  int server = -1;
};

// Detail of `status`; reason 0 ("UNSPECIFIED") when it carries none.
ErrorInfo GetErrorInfo(const absl::Status& status);

}  // namespace ballast::client
