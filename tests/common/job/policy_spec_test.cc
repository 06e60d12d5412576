// The policy of a job: the refusals, by name, and how two jobs' policies differ.
#include "common/job/policy_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "common/base/reason.h"
#include "common/job/job_spec.h"

namespace ballast {
namespace {

JobSpec Scaled() {
  JobSpec spec;
  spec.name = "job-1";
  spec.group_count = 2;
  spec.tensors = {{"a", {4}, DType::kF16, 0, {}}, {"b", {4}, DType::kF16, 1, {}}};
  spec.policy.loss_scaler = LossScalerConfig{};
  spec.policy.schedule = WarmupDecayLR{.total_num_steps = 100};
  return spec;
}

struct Case {
  const char* expect;
  std::function<void(JobSpec*)> spoil;
  Reason reason = Reason::kBadHyperparam;
};

OneCycle Cycle() { return {.cycle_min_lr = 0.1, .cycle_max_lr = 0.2}; }

const Case kBad[] = {
    {"initial_scale_power must be 0 to 126, got 127",
     [](JobSpec* s) { s->policy.loss_scaler->initial_scale_power = 127; }},
    {"loss_scale_window must be a positive integer, got 0",
     [](JobSpec* s) { s->policy.loss_scaler->loss_scale_window = 0; }},
    {"hysteresis must be", [](JobSpec* s) { s->policy.loss_scaler->hysteresis = 0; }},
    {"min_loss_scale must be at least",
     [](JobSpec* s) { s->policy.loss_scaler->min_loss_scale = 1e-30; }},
    {"a loss scaler of a job is dynamic",
     [](JobSpec* s) { s->policy.loss_scaler->dynamic = false; }},
    {"loss_scale is 8 in a job with a dynamic", [](JobSpec* s) { s->loss_scale = 8; },
     Reason::kBadSpec},
    {"nonfinite is halt in a job with a dynamic",
     [](JobSpec* s) { s->nonfinite = NonfinitePolicy::kHalt; }, Reason::kBadSpec},
    {"warmup_min_lr must be from 0 to 1e+18, got -1",
     [](JobSpec* s) { s->policy.schedule = WarmupLR{.warmup_min_lr = -1.0}; }},
    {"warmup_max_lr must be a finite number",
     [](JobSpec* s) { s->policy.schedule = WarmupLR{.warmup_max_lr = PerGroup(std::nan(""))}; }},
    {"expected 2 values for warmup_min_lr, got 3",
     [](JobSpec* s) {
       s->policy.schedule = WarmupLR{.warmup_min_lr = std::vector<double>{1, 2, 3}};
     }},
    {"cycle_max_mom must be in [0, 1), got 1",
     [](JobSpec* s) {
       OneCycle cycle = Cycle();
       cycle.cycle_max_mom = 1.0;
       s->policy.schedule = cycle;
     }},
    {"cycle_momentum is true, but SGD has no beta1 to cycle; give cycle_momentum=false",
     [](JobSpec* s) {
       s->optimizer = OptimizerKind::kSgd;
       s->policy.schedule = Cycle();
     }},
    {"schedule groups are given for 1 groups; the job has 2",
     [](JobSpec* s) { s->policy.schedule_group = {0}; }},
    {"group 1 is in schedule group 3; the schedule has 2",
     [](JobSpec* s) {
       s->policy.schedule_group = {0, 3};
       s->policy.schedule_group_count = 2;
     }},
    {"the limit is 65536",
     [](JobSpec* s) {
       s->policy.schedule_group = {0, UINT32_MAX - 1};
     }},
    {"but no schedule",
     [](JobSpec* s) {
       s->policy.schedule.reset();
       s->policy.schedule_group = {0, 1};
     }},
};

TEST(PolicySpecTest, RefusesEachBadFieldByName) {
  ASSERT_TRUE(ValidateJobSpec(Scaled(), {}).ok()) << ValidateJobSpec(Scaled(), {});
  for (const Case& c : kBad) {
    JobSpec spec = Scaled();
    c.spoil(&spec);
    const absl::Status status = ValidateJobSpec(spec, {});
    EXPECT_EQ(ReasonOf(status), c.reason) << c.expect << ": " << status;
    EXPECT_NE(std::string(status.message()).find(c.expect), std::string::npos) << status;
  }
}

TEST(PolicySpecTest, AKindWithoutBetasTakesACycleWithoutMomentum) {
  JobSpec spec = Scaled();
  OneCycle cycle = Cycle();
  cycle.cycle_momentum = false;
  spec.optimizer = OptimizerKind::kSgd;
  spec.policy.schedule = cycle;
  EXPECT_TRUE(ValidateJobSpec(spec, {}).ok()) << ValidateJobSpec(spec, {});
}

// A list has one value per schedule group, some of which may have no tensor yet.
TEST(PolicySpecTest, ListsCountScheduleGroupsNotGroups) {
  JobSpec spec = Scaled();
  spec.policy.schedule = WarmupLR{.warmup_min_lr = std::vector<double>{1, 2, 3}};
  spec.policy.schedule_group = {2, 2};
  EXPECT_TRUE(ValidateJobSpec(spec, {}).ok()) << ValidateJobSpec(spec, {});
  EXPECT_EQ(spec.policy.ScheduleGroupOf(1), 2u);
  spec.policy.schedule_group = {0, 1};
  EXPECT_FALSE(ValidateJobSpec(spec, {}).ok());
  spec.policy.schedule_group_count = 3;
  EXPECT_TRUE(ValidateJobSpec(spec, {}).ok()) << ValidateJobSpec(spec, {});
}

TEST(PolicySpecTest, FirstDifferenceNamesTheField) {
  JobSpec other = Scaled();
  other.policy.loss_scaler->hysteresis = 4;
  EXPECT_EQ(FirstDifference(Scaled(), other), "hysteresis is 4, the job has 2");
  other = Scaled();
  other.policy.loss_scaler.reset();
  EXPECT_EQ(FirstDifference(Scaled(), other), "dynamic loss scale is off, the job has on");
  other = Scaled();
  other.policy.schedule = WarmupDecayLR{.total_num_steps = 200};
  EXPECT_EQ(FirstDifference(Scaled(), other), "total_num_steps is 200, the job has 100");
  other.policy.schedule = WarmupLR{};
  EXPECT_EQ(FirstDifference(Scaled(), other), "schedule is WarmupLR, the job has WarmupDecayLR");
  other = Scaled();
  other.policy.schedule_group = {0, 0};
  EXPECT_EQ(FirstDifference(Scaled(), other), "schedule groups is [0, 0], the job has []");
}

}  // namespace
}  // namespace ballast
