// How much memory a server may plan for jobs.
// Comes from: the kernel's files. Goes to: server.cc. Thread safety: pure apart from reading files.
#pragma once

#include <cstdint>
#include <string>

#include "ballast/config/v1/server.pb.h"

namespace ballast::server {

// Bytes of memory that this process may have in all, and how many of them are free at the moment:
// those of the machine, or of the tightest control group (version 1 or 2) that the process is in,
// at any height. 0 when the kernel does not tell.
struct MachineMemory {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
};

// `root` stands before /proc and /sys; empty but in tests.
MachineMemory ReadMachineMemory(const std::string& root = "");

// Bytes that a server may plan: for jobs, and of these for state in memory. Jobs that ran before
// a start may have `machine_bytes`, if that is more. gRPC may have `rpc_bytes` beside the jobs.
struct MemoryBudgets {
  uint64_t all_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t machine_bytes = 0;
  uint64_t rpc_bytes = 0;
};

// storage.memory_budget, else 80 % of what is available, in whole MiB; storage.dram_budget, else
// all of it; limits.max_rpc_memory_bytes, else what the first and limits.max_parse_bytes leave of
// what is available, at least the largest of 1 GiB, what 64 trainers may have on the way, 4 times
// the largest message, and 32 KiB for each of limits.max_connections.
MemoryBudgets BudgetsOf(const config::v1::ServerConfig& config, const MachineMemory& memory);

// What the process may have where the plans of its jobs take `planned_bytes`: those, requests that
// are being parsed (limits.max_parse_bytes), and 256 MiB for itself. What it has above that is with
// connections: it stays within limits.max_rpc_memory_bytes, and may be a stranger's.
uint64_t ExplainedBytes(const config::v1::ServerConfig& config, uint64_t planned_bytes);

}  // namespace ballast::server
