// DiskState: how full the disk of a configured directory is, and for how long it has not answered.
#pragma once

#include <chrono>
#include <string>

namespace ballast::server {

// State of a configured directory's disk at the last check.
struct DiskState {
  std::string directory;  // data or snapshot
  bool answers = true;
  double free_bytes = 0;  // 0 before the first answer, like the next field
  double size_bytes = 0;
  // Age of the oldest unfinished call to it: a write, a flush, a rename.
  std::chrono::nanoseconds waits{0};
};

}  // namespace ballast::server
