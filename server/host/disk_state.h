// DiskState: how full the disk of a configured directory is, and how long it has not answered.
// Comes from: DiskWatch. Goes to: the Admin service, the metrics. Thread safety: plain value.
#pragma once

#include <chrono>
#include <string>

namespace ballast::server {

// State of a configured directory's disk at the last check.
struct DiskState {
  std::string directory;  // data or snapshot
  bool answers = true;
  double free_bytes = 0;  // 0 before the first answer, as the next
  double size_bytes = 0;
  // Since the oldest call for it began that has not ended: a write, a flush, a rename.
  std::chrono::nanoseconds waits{0};
};

}  // namespace ballast::server
