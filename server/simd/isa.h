// The instruction sets our kernels are compiled for, and which of them this CPU may run.
// Comes from: CPUID, and the operator's override. Goes to: the kernel tables of optim and reduce.
// Thread safety: pure functions; safe from any thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast::simd {

// Ordered: a later one is preferred. All of them give the same bits, so a job may move between
// hosts of different kinds.
enum class Isa : uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// "scalar", "avx2" or "avx512"; static storage.
const char* IsaName(Isa isa);

// True when the CPU has the instructions and the operating system saves their registers.
// kAvx2 means AVX2 + FMA + F16C; kAvx512 means that plus AVX-512 F, BW, DQ and VL.
bool CpuHas(Isa isa);

// The best instruction set of this CPU.
Isa DetectIsa();

// The instruction set to use. `requested` is the value of the BALLAST_ISA setting: "" for the best
// one, or a name of IsaName.
// Errors: INVALID_ARGUMENT for an unknown name, or for one that this CPU cannot run; the message
// names the value and the CPU's features.
absl::StatusOr<Isa> ChooseIsa(absl::string_view requested);

}  // namespace ballast::simd
