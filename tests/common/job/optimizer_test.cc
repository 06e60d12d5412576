// The table of optimizer kinds: its numbers and names stand in files, so both are held here.
#include "common/job/optimizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ballast {
namespace {

template <class Entry>
std::string Names(std::span<const Entry> entries) {
  std::string names;
  for (const Entry& entry : entries) names += std::string(names.empty() ? "" : " ") + entry.name;
  return names;
}

size_t Arrays(OptimizerKind kind, const Options& options) {
  return CountStateArrays(*FindOptimizer(kind), options);
}

TEST(OptimizerTest, KindsKeepTheirNumbersKeysAndArrays) {
  const std::string adam = "lr beta1 beta2 eps weight_decay";
  const std::string second_moments = "exp_avg exp_avg_sq max_exp_avg_sq";
  struct {
    int number;
    std::string name, hyper, options, arrays;
  } const rows[] = {
      {1, "AdamW", adam, "amsgrad maximize", second_moments},
      {2, "Adam", adam, "amsgrad maximize", second_moments},
      {3, "SGD", "lr momentum dampening weight_decay", "momentum nesterov maximize",
       "momentum_buffer"},
      {4, "Adagrad", "lr lr_decay weight_decay eps",
       "initial_accumulator_value maximize raw_numerator", "sum"},
      {5, "Lion", "lr beta1 beta2 weight_decay", "moves_at_zero", "exp_avg"},
      {6, "LAMB", adam + " max_coeff min_coeff", "bias_correction uncorrected_ratio",
       "exp_avg exp_avg_sq"},
      {7, "apply_delta", "lr weight_decay", "", ""},
  };
  ASSERT_EQ(std::size(rows), std::size(kOptimizers));
  for (const auto& row : rows) {
    const OptimizerRow* found = FindOptimizer(static_cast<OptimizerKind>(row.number));
    ASSERT_NE(found, nullptr) << row.name;
    EXPECT_EQ(found->name, row.name);
    EXPECT_EQ(Names(found->hyper), row.hyper) << row.name;
    EXPECT_EQ(Names(found->options), row.options) << row.name;
    EXPECT_EQ(Names(found->arrays), row.arrays) << row.name;
    EXPECT_EQ(found->formula_id, 1u) << row.name;
    EXPECT_EQ(found->passes, row.name == "LAMB" ? 2u : 1u) << row.name;
  }
}

TEST(OptimizerTest, NumbersOfNoKindAreNotFound) {
  EXPECT_EQ(FindOptimizer(OptimizerKind::kUnspecified), nullptr);
  for (int number = 8; number < 256; ++number) {
    EXPECT_EQ(FindOptimizer(static_cast<OptimizerKind>(number)), nullptr) << number;
  }
}

TEST(OptimizerTest, OptionsDecideHowManyArraysAJobHas) {
  EXPECT_EQ(Arrays(OptimizerKind::kAdamW, {0, 1}), 3u);
  EXPECT_EQ(Arrays(OptimizerKind::kAdamW, {1, 0}), 4u);
  EXPECT_EQ(Arrays(OptimizerKind::kAdam, {1, 1}), 4u);
  EXPECT_EQ(Arrays(OptimizerKind::kSgd, {0, 0, 1}), 1u);
  EXPECT_EQ(Arrays(OptimizerKind::kSgd, {1, 0, 0}), 2u);
  EXPECT_EQ(Arrays(OptimizerKind::kAdagrad, {0, 0, 0}), 2u);
  EXPECT_EQ(Arrays(OptimizerKind::kLion, {0}), 2u);
  EXPECT_EQ(Arrays(OptimizerKind::kLamb, {0, 0}), 3u);
  EXPECT_EQ(Arrays(OptimizerKind::kApplyDelta, {}), 1u);
}

TEST(OptimizerTest, ArraysThatNeedAFlagComeLast) {
  for (const OptimizerRow& row : kOptimizers) {
    bool optional = false;
    for (const StateArray& array : row.arrays) {
      EXPECT_FALSE(optional && array.needs == kNoOption) << row.name << " " << array.name;
      optional = array.needs != kNoOption;
      if (optional) {
        EXPECT_TRUE(row.options[array.needs].is_flag);
      }
    }
  }
}

}  // namespace
}  // namespace ballast
