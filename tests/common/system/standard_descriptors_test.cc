// The descriptors of a program that was started with descriptors 0 to 2 closed.
#include "common/system/standard_descriptors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace ballast {
namespace {

// The findings of a child that closes the descriptors of `closed` (bit n: n) and calls the
// function: bit n of the result: n is /dev/null; bit 3: the next file has one of the three numbers.
int FoundBy(int closed) {
  const pid_t child = fork();
  if (child == 0) {
    struct stat null_device;
    int found = stat("/dev/null", &null_device) == 0 ? 0 : 16;
    for (int fd = 0; fd < 3; ++fd) {
      // The others are a file that is not /dev/null, however the test itself was started.
      if ((closed >> fd & 1) == 0) dup2(open("/", O_RDONLY), fd);
    }
    for (int fd = 0; fd < 3; ++fd) {
      if ((closed >> fd & 1) != 0) close(fd);
    }
    if (!HoldStandardDescriptors().ok()) found |= 16;
    for (int fd = 0; fd < 3; ++fd) {
      struct stat now;
      if (fstat(fd, &now) == 0 && now.st_rdev == null_device.st_rdev) found |= 1 << fd;
      if ((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) found |= 16;
    }
    if (open("/", O_RDONLY) < 3) found |= 8;
    _exit(found);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardDescriptors, EachThatIsClosedBecomesTheNullDeviceAndTheOthersStay) {
  for (int closed = 0; closed < 8; ++closed) {
    EXPECT_EQ(FoundBy(closed), closed) << "closed: bits of " << closed;
  }
}

}  // namespace
}  // namespace ballast
