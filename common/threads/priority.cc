#include "common/threads/priority.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace ballast {
namespace {

// Of the calling thread: on Linux the "process" 0 is a thread.
bool Niceness(int* niceness) {
  errno = 0;
  *niceness = getpriority(PRIO_PROCESS, 0);
  return errno == 0;
}

constexpr int kMost = 19;

}  // namespace

void LowerPriority(int niceness) {
  int now = 0;
  if (Niceness(&now)) setpriority(PRIO_PROCESS, 0, std::min(kMost, now + niceness));
}

void GiveWay(int niceness) {
  int now = 0;
  if (Niceness(&now) && now < niceness) setpriority(PRIO_PROCESS, 0, niceness);
}

}  // namespace ballast
