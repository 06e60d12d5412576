#include "common/system/standard_descriptors.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status HoldStandardDescriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The kernel gives the lowest free number, which is this one: those below are open.
    const int opened = open("/dev/null", O_RDWR);
    if (opened < 0) {
      return absl::UnavailableError(absl::StrCat(
          "descriptor ", descriptor, " is closed, and /dev/null cannot be opened in its place: ",
          std::strerror(errno), "; start with descriptors 0 to 2 open"));
    }
    if (opened > STDERR_FILENO) close(opened);  // Another thread was first.
  }
  return absl::OkStatus();
}

// A sanitizer's functions are not ready yet, so that not even libc's wrappers are called but one.
__attribute__((no_sanitize("address", "thread", "undefined"))) void HoldStandardDescriptorsFirst() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (syscall(SYS_fcntl, descriptor, F_GETFD) >= 0) continue;
    syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  }
}

}  // namespace ballast
