#include "server/host/data_dir_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/io/file_error.h"

namespace ballast::server {
namespace {

absl::Status Refused(const std::string& path, absl::string_view what) {
  return absl::InternalError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno),
                                          "; set storage.data_dir to a directory that this user ",
                                          "may write to"));
}

// The error after a short write of `bytes`; `error` is its errno, or 0 if the device was full.
absl::Status Unwritten(const std::string& path, size_t bytes, int error) {
  if (error != 0 && error != ENOSPC && error != EDQUOT) {
    errno = error;
    return Refused(path, "write");
  }
  return FileError(ENOSPC, absl::StrCat("write ", bytes, " bytes to"), path);
}

// "process 17", or less when the holder has not written its pid yet.
std::string HolderOf(int descriptor) {
  char text[24] = {};
  const ssize_t bytes = pread(descriptor, text, sizeof(text) - 1, 0);
  int pid = 0;
  if (bytes <= 0 || !absl::SimpleAtoi(text, &pid)) return "another process";
  return absl::StrCat("process ", pid);
}

}  // namespace

absl::StatusOr<DataDirLock> DataDirLock::Take(const std::string& directory) {
  const std::string path = directory + "/lock";
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return Refused(path, "open");
  DataDirLock lock(descriptor);
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return Refused(path, "lock");
    return absl::FailedPreconditionError(
        absl::StrCat("storage.data_dir ", directory, " is in use by ", HolderOf(descriptor),
                     "; stop that ballastd, or give this one a directory of its own"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  // Overwrites the existing content first, which works even on a full disk.
  const ssize_t written = pwrite(descriptor, pid.data(), pid.size(), 0);
  if (written != static_cast<ssize_t>(pid.size())) {
    return Unwritten(path, pid.size(), written < 0 ? errno : 0);
  }
  if (ftruncate(descriptor, static_cast<off_t>(pid.size())) != 0) return Refused(path, "write");
  return lock;
}

DataDirLock::~DataDirLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

DataDirLock::DataDirLock(DataDirLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

DataDirLock& DataDirLock::operator=(DataDirLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

}  // namespace ballast::server
