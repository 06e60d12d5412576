// CPUID and XGETBV, read once. See isa.h. Thread safety: pure functions over a constant.
#include "server/simd/isa.h"

#include <cpuid.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast::simd {
namespace {

// The register states (XCR0) the operating system saves: bits 1-2 are XMM and YMM, bits 5-7 the
// AVX-512 mask and ZMM registers. Without them the instructions fault although CPUID lists them.
constexpr uint64_t kYmmState = 0x06;
constexpr uint64_t kZmmState = 0xE6;

uint64_t ReadXcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

Isa ReadCpu() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::kScalar;
  const bool os_saves_state = (c & bit_OSXSAVE) != 0;
  if (!os_saves_state || !(c & bit_AVX) || !(c & bit_FMA) || !(c & bit_F16C)) return Isa::kScalar;
  const uint64_t xcr0 = ReadXcr0();
  if ((xcr0 & kYmmState) != kYmmState) return Isa::kScalar;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return Isa::kScalar;
  constexpr uint32_t kAvx512Bits = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  if ((b & kAvx512Bits) != kAvx512Bits || (xcr0 & kZmmState) != kZmmState) return Isa::kAvx2;
  return Isa::kAvx512;
}

std::string NamesUpTo(Isa best) {
  std::string names = IsaName(Isa::kScalar);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= best) absl::StrAppend(&names, ", ", IsaName(isa));
  }
  return names;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa DetectIsa() {
  static const Isa best = ReadCpu();
  return best;
}

bool CpuHas(Isa isa) { return isa <= DetectIsa(); }

absl::StatusOr<Isa> ChooseIsa(absl::string_view requested) {
  if (requested.empty()) return DetectIsa();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (requested != IsaName(isa)) continue;
    if (CpuHas(isa)) return isa;
    return absl::InvalidArgumentError(
        absl::StrCat("instruction set \"", requested, "\" is not available: this CPU has ",
                     NamesUpTo(DetectIsa()), "; choose one of those or leave BALLAST_ISA unset"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown instruction set \"", requested,
                   "\": BALLAST_ISA must be scalar, avx2 or avx512 (this CPU has ",
                   NamesUpTo(DetectIsa()), ") or unset for the best one"));
}

}  // namespace ballast::simd
