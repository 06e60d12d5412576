// process_* metrics from /proc/self; see process.h.
// Thread safety: stateless functions.
#include "common/metrics/process.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace ballast {
namespace {

// The first two numbers of statm: all pages, and those in memory.
struct Pages {
  double all = 0.0;
  double resident = 0.0;
};
Pages ReadPages() {
  std::ifstream file("/proc/self/statm");
  Pages pages;
  return file >> pages.all >> pages.resident ? pages : Pages();
}

double PageBytes() { return static_cast<double>(sysconf(_SC_PAGESIZE)); }
double VirtualBytes() { return ReadPages().all * PageBytes(); }

double CpuSeconds() {
  timespec used{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) return 0.0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double OpenFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0.0;
  int entries = 0;
  while (readdir(dir) != nullptr) ++entries;
  closedir(dir);
  return entries - 3;  // ".", ".." and the descriptor of this walk.
}

double MaxFds() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0.0;
  return static_cast<double>(limit.rlim_cur);
}

// Unix time of the start: boot time plus field 22 of stat, in clock ticks since boot.
double StartTimeSeconds() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  const size_t after_name = text.rfind(')');  // The name may hold blanks and brackets.
  if (after_name == std::string::npos) return 0.0;
  std::istringstream fields(text.substr(after_name + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double start_ticks = 0.0;
  if (!(fields >> start_ticks)) return 0.0;
  timespec now{};
  timespec since_boot{};
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double boot = static_cast<double>(now.tv_sec - since_boot.tv_sec);
  return boot + start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

double ResidentBytes() { return ReadPages().resident * PageBytes(); }

void AddProcessMetrics(MetricRegistry* registry) {
  registry->AddCallback("process_resident_memory_bytes", {}, ResidentBytes);
  registry->AddCallback("process_virtual_memory_bytes", {}, VirtualBytes);
  registry->AddCallback("process_cpu_seconds_total", {}, CpuSeconds);
  registry->AddCallback("process_open_fds", {}, OpenFds);
  registry->AddCallback("process_max_fds", {}, MaxFds);
  // Read once: the clock may be set, the start time must not move.
  registry->AddCallback("process_start_time_seconds", {},
                        [start = StartTimeSeconds()] { return start; });
}

}  // namespace ballast
