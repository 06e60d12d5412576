#include "server/net/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace ballast::server {
namespace {

constexpr int kReserve = 256;

int AsCount(rlim_t limit) {
  constexpr rlim_t most = std::numeric_limits<int>::max();
  return static_cast<int>(std::min(limit, most));
}

}  // namespace

int RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  return DescriptorLimit();
}

int ConnectionDescriptorEnd(int limit) { return limit - std::min(kReserve, limit / 4); }

int DescriptorLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? AsCount(limit.rlim_cur) : 0;
}

}  // namespace ballast::server
