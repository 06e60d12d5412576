// Included by the source file of a main program, and by no other: as HoldStandardDescriptors, but
// before the constructors of shared libraries, of which gRPC's open an eventfd. The main program
// calls HoldStandardDescriptors as well, which says why it could not be done.
// Comes from: main programs. Goes to: the kernel. Thread safety: runs before there are threads.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ballast::internal {

// System calls as they are: neither sanitizers nor libraries are ready.
__attribute__((no_sanitize("address", "thread", "undefined"))) inline void HoldEarly() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (syscall(SYS_fcntl, descriptor, F_GETFD) >= 0) continue;
    syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  }
}

__attribute__((section(".preinit_array"), used)) static void (*hold_early)() = &HoldEarly;

}  // namespace ballast::internal
