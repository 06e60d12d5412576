// Typed errors of the client: every absl::Status that it returns carries a Reason, and names the
// job, slot or server that it is about. Comes from: the servers' ErrorDetail or the client itself.
// Goes to: callers, Python exceptions. C++17-clean. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace ballast::client {

// Detail of a Status.
struct ErrorInfo {
  int reason = 0;           // a number of ballast.v1.Reason (types.proto)
  std::string reason_name;  // its name without REASON_, for example "TRAINER_LOST"
  std::string job;          // empty: the status names none
  uint64_t round = 0;       // 0: likewise
  int slot = -1;            // -1: likewise
  int server = -1;          // server id; -1: likewise
};

// Detail of `status`; reason 0 ("UNSPECIFIED") when `status` carries none.
ErrorInfo GetErrorInfo(const absl::Status& status);

}  // namespace ballast::client
