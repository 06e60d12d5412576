// DataDirLock: one process per data directory. Two servers on the same files would each believe
// what they wrote, so the second is refused before it reads anything.
//
//   <directory>/lock    flock held for as long as the process lives; holds its pid as text
//
// The kernel gives the lock back when its holder ends, however that happens, so there is nothing to
// clean up. The file stays. The file system must know flock: local ones do, NFS since Linux 2.6.12.
// Comes from: main. Goes to: POSIX. Thread safety: thread-compatible.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ballast::server {

// Move-only; the destructor gives the directory back.
class DataDirLock {
 public:
  // Of no directory.
  DataDirLock() = default;
  // Takes the existing `directory`, without waiting. Errors: FAILED_PRECONDITION, naming the
  // directory and the pid of its holder, when another process has it; INTERNAL when the file cannot
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
