#include "server/memory_budget.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace ballast::server {
namespace {

uint64_t MemAvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return 0;
}

// False when the file holds no number, such as "max".
bool ReadNumber(const char* path, uint64_t* value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *value);
}

uint64_t ControlGroupBytes() {
  uint64_t limit = 0;
  uint64_t used = 0;
  if (!ReadNumber("/sys/fs/cgroup/memory.max", &limit) ||
      !ReadNumber("/sys/fs/cgroup/memory.current", &used)) {
    return std::numeric_limits<uint64_t>::max();
  }
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t DefaultMemoryBudgetBytes() {
  const uint64_t bytes = std::min(MemAvailableBytes(), ControlGroupBytes()) / 5 * 4;
  return bytes >> 20 << 20;
}

MemoryBudgets BudgetsOf(const config::v1::Storage& config) {
  MemoryBudgets budgets;
  budgets.all_bytes = config.memory_budget() > 0 ? static_cast<uint64_t>(config.memory_budget())
                                                 : DefaultMemoryBudgetBytes();
  budgets.state_bytes =
      config.dram_budget() > 0 ? static_cast<uint64_t>(config.dram_budget()) : budgets.all_bytes;
  return budgets;
}

}  // namespace ballast::server
