// The rates of a job's groups in a step: own hyper-parameters, and the effect of a schedule on
// them.
#include "common/job/round_rates.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

JobSpec Spec() {
  JobSpec spec;
  spec.name = "scheduled";
  spec.group_count = 2;
  spec.tensors = {{"a", {4}, DType::kF32, 0, {}}, {"b", {4}, DType::kF32, 1, {}}};
  return spec;
}

const std::vector<Hyper> kOwn = {{0.5, 0.9, 0.99, 1e-8, 0.01}, {0.25, 0.8, 0.98, 1e-8, 0}};

std::vector<GroupRates> At(const JobSpec& spec, int64_t index) {
  PolicyState policy = StartPolicy(spec);
  policy.schedule_index = index;
  return RatesOf(spec, policy, kOwn);
}

TEST(RoundRatesTest, WithoutAScheduleTheyAreTheTrainersOwn) {
  const std::vector<GroupRates> rates = At(Spec(), -1);
  EXPECT_EQ(rates[0], (GroupRates{0.5, 0.9, 0.99}));
  EXPECT_EQ(rates[1], (GroupRates{0.25, 0.8, 0.98}));
  EXPECT_EQ(WithRates(Spec(), kOwn, rates), kOwn);
}

TEST(RoundRatesTest, AScheduleStartsFromEachGroupsOwnRates) {
  JobSpec spec = Spec();
  spec.policy.schedule = WarmupLR{.warmup_num_steps = 2, .warmup_type = WarmupType::kLinear};
  EXPECT_EQ(At(spec, -1)[0].lr, 0);
  EXPECT_EQ(At(spec, 1)[0].lr, 0.25);
  EXPECT_EQ(At(spec, 1)[1].lr, 0.125);
  const std::vector<Hyper> hyper = WithRates(spec, kOwn, At(spec, 1));
  EXPECT_EQ(hyper[0], (Hyper{0.25, 0.9, 0.99, 1e-8, 0.01}));
}

TEST(RoundRatesTest, AGroupTakesTheValueOfItsScheduleGroup) {
  JobSpec spec = Spec();
  spec.policy.schedule = LRRangeTest{.lr_range_test_min_lr = std::vector<double>{1, 2, 3}};
  spec.policy.schedule_group = {2, 0};
  ASSERT_TRUE(ValidateJobSpec(spec, {}).ok()) << ValidateJobSpec(spec, {});
  EXPECT_EQ(At(spec, -1)[0].lr, 3);
  EXPECT_EQ(At(spec, -1)[1].lr, 1);
}

TEST(RoundRatesTest, AMomentumThatCannotBeUsedBecomesTheNearestThatCan) {
  JobSpec spec = Spec();
  OneCycle cycle{.cycle_min_lr = 0.1,
                 .cycle_max_lr = 0.2,
                 .cycle_first_step_size = 1,
                 .decay_step_size = 1,
                 .decay_mom_rate = 1};
  spec.policy.schedule = cycle;
  ASSERT_TRUE(ValidateJobSpec(spec, {}).ok()) << ValidateJobSpec(spec, {});
  EXPECT_EQ(At(spec, 100)[0].beta1, kScheduledBetaMax);
  EXPECT_EQ(At(spec, 100)[0].beta2, 0.99);
  cycle.cycle_max_mom = 0.9995;
  spec.policy.schedule = cycle;
  EXPECT_EQ(At(spec, 100)[0].beta1, 0.9995);
  cycle.decay_mom_rate = -1;
  spec.policy.schedule = cycle;
  EXPECT_EQ(At(spec, 100)[0].beta1, 0);
  spec.policy.profile = PolicyProfile::kDeepSpeed;
  EXPECT_EQ(At(spec, 0)[1].beta2, 0.99) << "the profile's quirk";
}

TEST(RoundRatesTest, AKindWithoutBetasHasNone) {
  JobSpec spec = Spec();
  spec.optimizer = OptimizerKind::kSgd;
  spec.options = {1, 0, 0};
  spec.policy.schedule = LRRangeTest{.lr_range_test_min_lr = 0.125};
  const std::vector<Hyper> own(2, Hyper{0.5, 0.9, 0, 0});
  const std::vector<GroupRates> rates = RatesOf(spec, StartPolicy(spec), own);
  EXPECT_EQ(rates[0], (GroupRates{.lr = 0.125}));
  EXPECT_EQ(WithRates(spec, own, rates)[1], (Hyper{0.125, 0.9, 0, 0}));
}

}  // namespace
}  // namespace ballast
