// How much memory a server may plan for jobs when the configuration does not say.
// Comes from: the kernel's files. Goes to: server.cc. Thread safety: pure apart from reading files.
#pragma once

#include <cstdint>

namespace ballast::server {

// 80 % of the memory available at the moment: MemAvailable, or what the control group of the
// process still allows where that is less; whole MiB. 0 when the kernel does not tell.
uint64_t DefaultMemoryBudgetBytes();

}  // namespace ballast::server
