#include "server/host/memory_budget.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast::server {
namespace {

// Minimum for gRPC if the jobs leave nothing: a number of bytes, a multiple of one trainer's bytes
// on the way, a multiple of the largest message, and an amount per connection.
constexpr uint64_t kRpcBytesLeast = 1ull << 30;
constexpr uint64_t kRpcCreditsLeast = 64;
constexpr uint64_t kRpcMessagesLeast = 4;
constexpr uint64_t kRpcConnectionBytes = 32 << 10;
// Code, threads, the metadata store, and pages that malloc has not returned yet.
constexpr uint64_t kServerBytes = 256 << 20;

// The number after `wanted` in a file of names and numbers; 0 if there is none.
uint64_t NumberOf(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  uint64_t number = 0;
  std::string unit;
  while (file >> key >> number) {
    if (key == wanted) return number;
    std::getline(file, unit);
  }
  return 0;
}

// False if the file holds no number, such as "max".
bool ReadNumber(const std::string& path, uint64_t* value) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *value);
}

// Paths and names used by one version of control groups for the values read here.
struct Hierarchy {
  const char* folder;
  const char* limit;
  const char* used;
  const char* inactive;  // in memory.stat: of the group and all its descendants
};
constexpr Hierarchy kVersion1 = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                 "/memory.usage_in_bytes", "total_inactive_file"};
constexpr Hierarchy kVersion2 = {"/sys/fs/cgroup", "/memory.max", "/memory.current",
                                 "inactive_file"};

// The control group of this process for memory, relative to its hierarchy's folder and without a
// trailing slash: "" is the root, as in a container with a name space of its own. Version 1 has a
// line "4:memory:/path", perhaps with other controllers; version 2 is "0::/path".
std::string OwnGroup(const std::string& root, bool version1) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (version1 ? !absl::c_linear_search(controllers, "memory") : parts[0] != "0") continue;
    return parts[2] == "/" ? "" : parts[2];
  }
  return "";
}

// Lowers `memory` to the limits of the group `path`. Pages of inactive files can be reclaimed at
// any time, so they do not count as used.
void Limit(const Hierarchy& names, const std::string& path, MachineMemory* memory) {
  uint64_t limit = 0;
  if (!ReadNumber(path + names.limit, &limit)) return;
  memory->total_bytes = std::min(memory->total_bytes, limit);
  uint64_t used = 0;
  if (!ReadNumber(path + names.used, &used)) return;
  used -= std::min(used, NumberOf(path + "/memory.stat", names.inactive));
  memory->available_bytes = std::min(memory->available_bytes, limit - std::min(limit, used));
}

// Applies Limit to `group` and all its ancestors.
void LimitAll(const std::string& root, const Hierarchy& names, std::string group,
              MachineMemory* memory) {
  for (;; group.resize(group.rfind('/'))) {
    Limit(names, absl::StrCat(root, names.folder, group), memory);
    if (group.empty()) return;
  }
}

uint64_t RpcFloor(const config::v1::ServerConfig& config) {
  const auto& limits = config.limits();
  const uint64_t message =
      static_cast<uint64_t>(std::max(limits.max_control_message_bytes(), limits.max_frame_bytes()));
  const uint64_t credit = static_cast<uint64_t>(config.rounds().credit_bytes());
  return std::max({kRpcBytesLeast, kRpcCreditsLeast * credit, kRpcMessagesLeast * message,
                   kRpcConnectionBytes * limits.max_connections()});
}

}  // namespace

MachineMemory ReadMachineMemory(const std::string& root) {
  const std::string machine = root + "/proc/meminfo";
  MachineMemory memory{.total_bytes = NumberOf(machine, "MemTotal:") * 1024,
                       .available_bytes = NumberOf(machine, "MemAvailable:") * 1024};
  LimitAll(root, kVersion1, OwnGroup(root, /*version1=*/true), &memory);
  LimitAll(root, kVersion2, OwnGroup(root, /*version1=*/false), &memory);
  return memory;
}

MemoryBudgets BudgetsOf(const config::v1::ServerConfig& config, const MachineMemory& memory) {
  const auto Or = [](int64_t set, uint64_t otherwise) {
    return set > 0 ? static_cast<uint64_t>(set) : otherwise;
  };
  const auto& storage = config.storage();
  MemoryBudgets budgets;
  budgets.all_bytes = Or(storage.memory_budget(), memory.available_bytes / 5 * 4 >> 20 << 20);
  budgets.state_bytes = Or(storage.dram_budget(), budgets.all_bytes);
  budgets.machine_bytes = memory.total_bytes;
  const uint64_t others =
      budgets.all_bytes + static_cast<uint64_t>(config.limits().max_parse_bytes());
  const uint64_t left = memory.available_bytes - std::min(memory.available_bytes, others);
  budgets.rpc_bytes = Or(config.limits().max_rpc_memory_bytes(), std::max(left, RpcFloor(config)));
  return budgets;
}

uint64_t ExplainedBytes(const config::v1::ServerConfig& config, uint64_t planned_bytes) {
  return planned_bytes + static_cast<uint64_t>(config.limits().max_parse_bytes()) + kServerBytes;
}

}  // namespace ballast::server
