// Reports periodically which trainers a round waits for: a slow trainer is waited for without
// limit, but never silently. Comes from: server.cc's timer. Goes to: the log.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/round/round_types.h"

namespace ballast::server {

class StragglerLog {
 public:
  // Lines for jobs whose open round was already open at the previous call: how many extents each
  // slot owes, and which votes are missing.
  std::vector<std::string> Lines(const std::vector<JobStatus>& jobs);

 private:
  std::map<uint64_t, uint64_t> open_;  // job -> round, at the previous call
};

}  // namespace ballast::server
