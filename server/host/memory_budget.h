// How much memory a server may plan for jobs.
// Comes from: the kernel's files. Goes to: server.cc. Thread safety: pure apart from reading files.
#pragma once

#include <cstdint>
#include <string>

#include "ballast/config/v1/server.pb.h"

namespace ballast::server {

// Bytes of memory available to this process in total, and how many of them are free at the moment:
// those of the machine, or of the tightest control group (version 1 or 2) among the group of the
// process and its ancestors. 0 if the kernel does not tell.
struct MachineMemory {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
};

// `root` is prepended to /proc and /sys; empty except in tests.
MachineMemory ReadMachineMemory(const std::string& root = "");

// Bytes that a server may plan: for jobs, and of these for state in memory. Jobs from before a
// restart may have `machine_bytes`, if that is more. gRPC may use `rpc_bytes` in addition to the
// jobs.
struct MemoryBudgets {
  uint64_t all_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t machine_bytes = 0;
  uint64_t rpc_bytes = 0;
};

// Jobs: storage.memory_budget, else 80 % of the available memory, in whole MiB. State:
// storage.dram_budget, else all of it. gRPC: limits.max_rpc_memory_bytes, else the available memory
// less the first and limits.max_parse_bytes, at least the largest of 1 GiB, 64 trainers' bytes on
// the way, 4 times the largest message, and 32 KiB for each of limits.max_connections.
MemoryBudgets BudgetsOf(const config::v1::ServerConfig& config, const MachineMemory& memory);

// Expected memory of the process while its jobs' plans take `planned_bytes`: those, requests being
// parsed (limits.max_parse_bytes), and 256 MiB for itself. Anything above belongs to connections:
// it stays within limits.max_rpc_memory_bytes, and may be a stranger's.
uint64_t ExplainedBytes(const config::v1::ServerConfig& config, uint64_t planned_bytes);

}  // namespace ballast::server
