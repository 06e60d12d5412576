// A job's use of its servers.
#include "tools/host/size.h"

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

TEST(Size, WithACollectiveTheServersHaveOneContributorAndTrainersABucketAndSums) {
  constexpr uint64_t kMi = 1 << 20;
  const SizeQuestion alone{.parameters = 8 * kMi};
  SizeQuestion question{.parameters = 8 * kMi, .trainers = 4, .collective = true};
  const auto answers = SizeOf(question);
  ASSERT_TRUE(answers.ok()) << answers.status();
  // But for 64 bytes per slot and extent.
  const uint64_t cells = 3 * 8 * 64;
  EXPECT_EQ(answers->front().gradients_max, SizeOf(alone)->front().gradients_max + cells);
  EXPECT_EQ(answers->front().gradients_min, answers->front().gradients_max);
  EXPECT_EQ(answers->front().sums, SizeOf(alone)->front().sums);
  const auto trainer = TrainerSizeOf(question);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ(trainer->buckets, (4 + 1) * kMi * 2) << "bf16";
  EXPECT_EQ(trainer->sums_host, 2 * kMi * 2) << "two of eight extents";
  EXPECT_EQ(trainer->sums_gpu, 8 * kMi * 2);
  question.collective = false;
  EXPECT_EQ(TrainerSizeOf(question)->buckets, 0u);
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
