// Schedules by name: every argument there and back, and the refusals.
#include "common/policy/schedule_arguments.h"

#include <gtest/gtest.h>

#include "common/base/reason.h"

namespace ballast {
namespace {

TEST(ScheduleArgumentsTest, EveryTypeComesBackFromItsArguments) {
  const Schedule schedules[] = {
      WarmupLR{.warmup_min_lr = 0.5,
               .warmup_max_lr = PerGroup(std::vector<double>{1, 2}),
               .warmup_num_steps = 7,
               .warmup_type = WarmupType::kLinear},
      WarmupDecayLR{.total_num_steps = 9},
      WarmupCosineLR{.total_num_steps = 3, .warmup_min_ratio = 0.25, .cos_min_ratio = 0.125},
      LRRangeTest{.lr_range_test_step_size = 5, .lr_range_test_staircase = true},
      OneCycle{.cycle_min_lr = 0.1,
               .cycle_max_lr = std::vector<double>{0.5},
               .cycle_second_step_size = 11,
               .cycle_second_stair_count = 4,
               .cycle_momentum = false,
               .decay_mom_rate = 0.5}};
  for (const Schedule& schedule : schedules) {
    const auto back = MakeSchedule(ScheduleType(schedule), ScheduleArguments(schedule));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == schedule) << ScheduleType(schedule);
  }
}

TEST(ScheduleArgumentsTest, OmittedArgumentsHaveTheirDefaults) {
  const auto made = MakeSchedule("WarmupLR", {{"warmup_num_steps", 10.0}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(*made == Schedule(WarmupLR{.warmup_num_steps = 10}));
}

TEST(ScheduleArgumentsTest, UnknownArgumentsAreRefusedByName) {
  const struct {
    const char* type;
    std::vector<ScheduleArgument> arguments;
    const char* expect;
  } cases[] = {
      {"Cosine", {}, "schedule \"Cosine\" is not known; this version offers WarmupLR, Warm"},
      {"WarmupLR", {{"total", 1.0}}, "WarmupLR has no argument \"total\""},
      {"WarmupLR",
       {{"warmup_num_steps", 1.0}, {"warmup_num_steps", 2.0}},
       "\"warmup_num_steps\", or it is given twice"},
      {"WarmupLR", {{"warmup_num_steps", 1.5}}, "warmup_num_steps is 1.5; it must be a whole"},
      {"WarmupLR", {{"warmup_num_steps", 1e300}}, "a whole number of at most 2^53"},
      {"WarmupLR", {{"warmup_type", "cubic"}}, "warmup_type is cubic; it must be log or linear"},
      {"WarmupLR", {{"warmup_min_lr", "low"}}, "warmup_min_lr is low; it must be one number"},
      {"LRRangeTest", {{"lr_range_test_staircase", 2.0}}, "it must be 0 or 1"},
      {"OneCycle", {{"decay_lr_rate", std::vector<double>{1, 2}}}, "is [1, 2]; it must be one"}};
  for (const auto& c : cases) {
    const auto made = MakeSchedule(c.type, c.arguments);
    EXPECT_EQ(ReasonOf(made.status()), Reason::kBadHyperparam) << c.expect;
    EXPECT_NE(std::string(made.status().message()).find(c.expect), std::string::npos)
        << made.status();
  }
}

}  // namespace
}  // namespace ballast
