// DataDirLock: one process per data directory. Two servers on the same files would each rely on
// their own writes, so the second is refused before it reads anything.
//
//   <directory>/lock    flock held for as long as the process lives; holds its pid as text
//
// The kernel releases the lock when its holder ends for any reason, so nothing needs cleaning up.
// The file stays. The file system must support flock: local ones do, NFS since Linux 2.6.12.
// Comes from: main. Goes to: POSIX. Thread safety: thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ballast::server {

// Move-only; the destructor releases the directory.
class DataDirLock {
 public:
  // Holds no directory.
  DataDirLock() = default;
  // Locks the existing `directory`, without waiting. Errors: FAILED_PRECONDITION, naming the
  // directory and the pid of its holder, if another process holds it; INTERNAL if the file cannot
  // be opened, locked or written.
  static absl::StatusOr<DataDirLock> Take(const std::string& directory);
  ~DataDirLock();
  DataDirLock(DataDirLock&& other) noexcept;
  DataDirLock& operator=(DataDirLock&& other) noexcept;

 private:
  explicit DataDirLock(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace ballast::server
