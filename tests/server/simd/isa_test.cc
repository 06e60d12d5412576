// The choice of instruction set: the CPU's sets, and the names an operator may ask for.
#include "server/simd/isa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ballast::simd {
namespace {

using ::testing::HasSubstr;

TEST(IsaTest, EveryCpuHasTheScalarPath) { EXPECT_TRUE(CpuHas(Isa::kScalar)); }

TEST(IsaTest, DetectionAgreesWithTheCompilersOwn) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  EXPECT_EQ(DetectIsa(), avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kScalar);
}

TEST(IsaTest, AnEmptyRequestMeansTheBestOne) { EXPECT_EQ(*ChooseIsa(""), DetectIsa()); }

TEST(IsaTest, ARequestIsHonouredExactlyWhenTheCpuCanRunIt) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    const absl::StatusOr<Isa> chosen = ChooseIsa(IsaName(isa));
    if (CpuHas(isa)) {
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_EQ(*chosen, isa);
    } else {
      EXPECT_EQ(chosen.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(chosen.status().message()), HasSubstr(IsaName(isa)));
      EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("this CPU has scalar"));
    }
  }
}

TEST(IsaTest, AnUnknownRequestIsRefusedByName) {
  for (const char* name : {"AVX2", "sse", "avx512 ", "auto"}) {
    const absl::Status status = ChooseIsa(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("scalar, avx2 or avx512"));
  }
}

}  // namespace
}  // namespace ballast::simd
