// Tests of common/policy/schedule.h by values computed by hand.
#include "common/policy/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/base/reason.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr GroupRates kOwn{.lr = 8, .beta1 = 0.5, .beta2 = 0.75};

// The learning rates at indices -1, 0, 1, ...
std::vector<double> Lrs(const Schedule& schedule, int count, size_t group = 0) {
  std::vector<double> lrs;
  for (int i = -1; i < count - 1; ++i) {
    lrs.push_back(RatesAt(schedule, i, group, kOwn, PolicyProfile::kExact).lr);
  }
  return lrs;
}

TEST(ScheduleTest, WarmupStartsTwiceAtItsMinimumAndEndsAtTheGroupsOwnLr) {
  EXPECT_THAT(Lrs(WarmupLR{.warmup_num_steps = 4, .warmup_type = WarmupType::kLinear}, 7),
              ElementsAre(0, 0, 2, 4, 6, 8, 8));
  EXPECT_THAT(Lrs(WarmupLR{.warmup_num_steps = 4}, 4),
              ElementsAre(0, 0, 4, testing::DoubleEq(8 * 0.79248125036057809)));
}

TEST(ScheduleTest, AListGivesEachGroupItsOwnValue) {
  const WarmupLR schedule{.warmup_min_lr = std::vector<double>{1, 2},
                          .warmup_max_lr = std::vector<double>{3, 6},
                          .warmup_num_steps = 1,
                          .warmup_type = WarmupType::kLinear};
  EXPECT_THAT(Lrs(schedule, 4, 0), ElementsAre(1, 1, 2, 3));
  EXPECT_THAT(Lrs(schedule, 4, 1), ElementsAre(2, 2, 4, 6));
}

TEST(ScheduleTest, DecayFallsToZeroAndStays) {
  const WarmupDecayLR schedule{
      .total_num_steps = 6,
      .warmup = {.warmup_max_lr = 4.0, .warmup_num_steps = 2, .warmup_type = WarmupType::kLinear}};
  EXPECT_THAT(Lrs(schedule, 9), ElementsAre(0, 0, 2, 4, 3, 2, 1, 0, 0));
}

TEST(ScheduleTest, CosineStartsAtZeroAndEndsAtItsFloor) {
  const WarmupCosineLR schedule{.total_num_steps = 4,
                                .warmup_num_steps = 2,
                                .cos_min_ratio = 0.25,
                                .warmup_type = WarmupType::kLinear};
  EXPECT_THAT(Lrs(schedule, 6), ElementsAre(0, 0, 4, testing::DoubleEq(5), 2, 2));
}

TEST(ScheduleTest, RangeTestRisesSmoothlyOrInStairs) {
  LRRangeTest schedule{.lr_range_test_min_lr = 1.0, .lr_range_test_step_size = 2};
  EXPECT_THAT(Lrs(schedule, 5), ElementsAre(1, 1.5, 2, 2.5, 3));
  schedule.lr_range_test_staircase = true;
  EXPECT_THAT(Lrs(schedule, 5), ElementsAre(1, 1, 2, 2, 3));
}

TEST(ScheduleTest, OneCycleRisesFallsAndDecays) {
  const OneCycle schedule{.cycle_min_lr = 1.0,
                          .cycle_max_lr = 5.0,
                          .decay_lr_rate = 1,
                          .cycle_first_step_size = 2,
                          .decay_step_size = 1};
  EXPECT_THAT(Lrs(schedule, 7), ElementsAre(1, 3, 5, 3, 1, 0.5, 1.0 / 3));
}

TEST(ScheduleTest, OneCycleMovesMomentumAgainstTheLr) {
  const OneCycle schedule{.cycle_min_lr = 1.0,
                          .cycle_max_lr = 5.0,
                          .cycle_first_step_size = 2,
                          .cycle_min_mom = 0.5,
                          .cycle_max_mom = 1.0};
  std::vector<double> momenta;
  for (int i = -1; i < 5; ++i) {
    momenta.push_back(RatesAt(schedule, i, 0, kOwn, PolicyProfile::kExact).beta1);
  }
  EXPECT_THAT(momenta, ElementsAre(0.5, 0.75, 0.5, 0.75, 1, 1));
  EXPECT_EQ(RatesAt(schedule, 0, 0, kOwn, PolicyProfile::kExact).beta2, 0.75);
  EXPECT_EQ(RatesAt(schedule, 0, 0, kOwn, PolicyProfile::kDeepSpeed).beta2, 0.99);
}

TEST(ScheduleTest, RefusesWhatCannotWork) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<Schedule, std::string>> cases = {
      {WarmupLR{.warmup_num_steps = 0}, "warmup_num_steps must be a positive integer, got 0"},
      {WarmupLR{.warmup_min_lr = nan}, "warmup_min_lr must be a finite number, got nan"},
      {WarmupLR{.warmup_max_lr = std::vector<double>{1}}, "expected 2 values for warmup_max_lr"},
      {WarmupDecayLR{.warmup = {.warmup_num_steps = -3}}, "got -3"},
      {WarmupCosineLR{.warmup_num_steps = 0}, "warmup_num_steps"},
      {LRRangeTest{.lr_range_test_step_size = 0}, "lr_range_test_step_size"},
      {OneCycle{.cycle_first_step_size = 0}, "cycle_first_step_size must be positive, got 0"},
      {OneCycle{.cycle_second_step_size = -1}, "cycle_second_step_size must be non-negative"},
      {OneCycle{.cycle_max_mom = std::vector<double>{1, 2, 3}}, "cycle_max_mom, got 3"}};
  for (const auto& [schedule, text] : cases) {
    const absl::Status status = CheckSchedule(schedule, 2);
    EXPECT_EQ(ReasonOf(status), Reason::kBadHyperparam);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

}  // namespace
}  // namespace ballast
