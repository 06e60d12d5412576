// How much memory a server may plan for jobs.
// Comes from: the kernel's files. Goes to: server.cc. Thread safety: pure apart from reading files.
#pragma once

#include <cstdint>

#include "ballast/config/v1/server.pb.h"

namespace ballast::server {

// 80 % of the memory available at the moment: MemAvailable, or what the control group of the
// process still allows where that is less; whole MiB. 0 when the kernel does not tell.
uint64_t DefaultMemoryBudgetBytes();

// Bytes that a server may plan: for jobs, and of these for state in memory.
struct MemoryBudgets {
  uint64_t all_bytes = 0;
  uint64_t state_bytes = 0;
};

// storage.memory_budget, else the default above; storage.dram_budget, else all of it.
MemoryBudgets BudgetsOf(const config::v1::Storage& config);

}  // namespace ballast::server
