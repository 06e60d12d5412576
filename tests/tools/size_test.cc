// What a job takes of its servers.
#include "tools/size.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::tools {
namespace {

TEST(Size, NumbersOfParametersHaveUnits) {
  EXPECT_EQ(*ParseParameters("7e9"), 7'000'000'000u);
  EXPECT_EQ(*ParseParameters("350M"), 350'000'000u);
  EXPECT_EQ(*ParseParameters("1.5B"), 1'500'000'000u);
  EXPECT_EQ(*ParseParameters("7b"), 7'000'000'000u);
  EXPECT_EQ(*ParseParameters("1"), 1u);
  for (const char* wrong : {"", "B", "-1", "0", "0.4", "3T", "seven", "nan", "inf", "1e99"}) {
    EXPECT_EQ(ParseParameters(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(Size, AdamWHasThreeArraysOfFp32) {
  const auto answers = SizeOf({.parameters = 1 << 24, .trainers = 2});
  ASSERT_TRUE(answers.ok()) << answers.status();
  ASSERT_EQ(answers->size(), 1u);
  const SizeAnswer& one = answers->front();
  EXPECT_EQ(one.state, 12u << 24);
  EXPECT_LE(one.gradients_min, one.gradients_max);
  EXPECT_GE(one.gradients_max, 2u * 2u << 24) << "bf16 of two trainers";
  EXPECT_GE(one.disk, 2 * one.state) << "two places for each image, and the log";
}

TEST(Size, ASmallWindowTakesLessMemory) {
  const auto answers = SizeOf({.parameters = 200 << 20, .trainers = 2});
  ASSERT_TRUE(answers.ok()) << answers.status();
  const SizeAnswer& one = answers->front();
  EXPECT_LT(one.gradients_min, one.gradients_max / 2) << "64 of 200 extents";
  EXPECT_GE(one.gradients_min, 64u * 2 * 2 << 20);
  EXPECT_EQ(one.memory_max() - one.memory_min(), one.gradients_max - one.gradients_min);
}

TEST(Size, ServersShareTheState) {
  const auto answers = SizeOf({.parameters = 1 << 24, .servers = 4});
  ASSERT_TRUE(answers.ok()) << answers.status();
  ASSERT_EQ(answers->size(), 4u);
  uint64_t state = 0;
  for (const SizeAnswer& one : *answers) state += one.state;
  EXPECT_EQ(state, 12u << 24);
}

TEST(Size, AWrongNameIsNamed) {
  const auto kind = SizeOf({.parameters = 100, .optimizer = "AdamX"});
  EXPECT_THAT(std::string(kind.status().message()), testing::HasSubstr("AdamX"));
  const auto dtype = SizeOf({.parameters = 100, .dtype = "int8"});
  EXPECT_THAT(std::string(dtype.status().message()), testing::HasSubstr("int8"));
  EXPECT_FALSE(SizeOf({.parameters = 100, .servers = 0}).ok());
  EXPECT_FALSE(SizeOf({.parameters = 100, .servers = 5000}).ok());
}

}  // namespace
}  // namespace ballast::tools
