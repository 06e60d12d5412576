// This program has one bug planted in a file that each target tests (BALLAST_PLANTED), and each
// target finds it within the runs of targets_test, from seeds alone.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/fuzz/fuzz_loop.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast::fuzz {
namespace {

constexpr uint64_t kSeed = 26;  // Of targets_test.

class Planted : public ::testing::TestWithParam<NamedTarget> {};

TEST_P(Planted, BugIsFound) {
  const std::unique_ptr<FuzzTarget> target = GetParam().make();
  FuzzLoop loop(target.get(), {}, kSeed);
  EXPECT_DEATH(loop.Run(GetParam().runs), "BALLAST_CHECK failed");
}

INSTANTIATE_TEST_SUITE_P(All, Planted, ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& named) { return std::string(named.param.name); });

}  // namespace
}  // namespace ballast::fuzz
