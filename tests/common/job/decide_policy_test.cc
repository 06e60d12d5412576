// A round's effect on loss scale and schedule: Decide with policy states of version 2.
#include <gtest/gtest.h>

#include <limits>

#include "common/job/decide.h"
#include "common/job/round_result.h"

namespace ballast {
namespace {

// A job of one group and one extent whose scale begins at 4 and grows after a clean round.
JobSpec Spec() {
  JobSpec spec;
  spec.name = "scaled";
  spec.tensors = {{"a", {4}, DType::kF16, 0, {}}};
  spec.policy.loss_scaler =
      LossScalerConfig{.initial_scale_power = 2, .loss_scale_window = 1, .hysteresis = 1};
  spec.policy.schedule = WarmupLR{};
  return spec;
}

DecideInput InputOf(const JobSpec& spec) {
  DecideInput input = DecideInputOf(spec);
  input.divisor = {1};
  input.extent_group = {0};
  input.policy = StartPolicy(spec);
  return input;
}

const std::vector<GroupRates> kRates = {{.lr = 0.5, .beta1 = 0.9, .beta2 = 0.99}};

Vote Clean() { return {.server = 0, .norms = {{0, 64.0}}, .rates = kRates}; }
Vote Overflow() {
  return {.server = 0,
          .norms = {{0, std::numeric_limits<double>::infinity()}},
          .nonfinite = 1,
          .first_nonfinite = {.kind = NonfiniteKind::kGradient, .element = 3},
          .rates = kRates};
}

// Runs the rounds one after the other; the last decision.
Decision RunRounds(DecideInput* input, const std::vector<Vote>& rounds) {
  Decision decision;
  for (const Vote& vote : rounds) {
    decision = *Decide(*input, {vote});
    input->policy = decision.policy;
  }
  return decision;
}

TEST(DecidePolicyTest, AnOverflowLowersTheScaleAndMovesNoSchedule) {
  DecideInput input = InputOf(Spec());
  const Decision decision = RunRounds(&input, {Overflow()});
  EXPECT_FALSE(decision.applied || decision.halted);
  EXPECT_EQ(decision.policy.loss_scale, 2);
  EXPECT_EQ(decision.policy.skipped, 1u);
  EXPECT_EQ(decision.policy.last_overflow, 0);
  EXPECT_EQ(decision.policy.scaler_iteration, 1);
  EXPECT_EQ(decision.policy.schedule_index, -1);
  EXPECT_EQ(decision.policy.consecutive_skips, 1u);
}

TEST(DecidePolicyTest, ACleanRoundMovesTheScheduleAndMayRaiseTheScale) {
  DecideInput input = InputOf(Spec());
  const Decision first = RunRounds(&input, {Clean()});
  EXPECT_TRUE(first.applied);
  EXPECT_EQ(first.policy.loss_scale, 4);
  EXPECT_EQ(first.policy.schedule_index, 0);
  const Decision second = RunRounds(&input, {Clean()});
  EXPECT_EQ(second.policy.loss_scale, 8);
  EXPECT_EQ(second.policy.schedule_index, 1);
  EXPECT_EQ(second.policy.opt_step, 2u);
}

// The two profiles divide the gradients of a round that grows the scale by different numbers, so
// that weights differ by a factor of two. Here: by SGD, w -= lr * g * scale.
TEST(DecidePolicyTest, AGrowthDividesByTheOldScaleOrUnderDeepSpeedByTheNewOne) {
  for (const PolicyProfile profile : {PolicyProfile::kExact, PolicyProfile::kDeepSpeed}) {
    JobSpec spec = Spec();
    spec.policy.profile = spec.policy.loss_scaler->profile = profile;
    DecideInput input = InputOf(spec);
    const Decision decision = RunRounds(&input, {Clean(), Clean()});
    const bool exact = profile == PolicyProfile::kExact;
    EXPECT_EQ(decision.policy.loss_scale, 8);
    EXPECT_EQ(decision.grad_scale[0], exact ? 0.25f : 0.125f);
    EXPECT_EQ(decision.grad_norm, exact ? 2.0 : 1.0);
    const float pushed = 8.0f;  // a gradient of 2, of a loss that was multiplied by 4
    EXPECT_EQ(1.0f - 0.5f * (pushed * decision.grad_scale[0]), exact ? 0.0f : 0.5f);
  }
}

TEST(DecidePolicyTest, SkipsCountOnlyWhereTheScaleCannotFall) {
  JobSpec spec = Spec();
  spec.max_consecutive_skips = 1;
  spec.policy.loss_scaler->initial_scale_power = 5;
  DecideInput input = InputOf(spec);
  const Decision fell = RunRounds(&input, std::vector<Vote>(5, Overflow()));
  EXPECT_FALSE(fell.halted) << "32 to 1";
  EXPECT_EQ(fell.policy.loss_scale, 1);
  EXPECT_EQ(fell.policy.consecutive_skips, 5u);
  const Decision stuck = RunRounds(&input, {Overflow()});
  EXPECT_TRUE(stuck.halted && !stuck.applied);
  EXPECT_EQ(stuck.policy.loss_scale, 1);
  EXPECT_EQ(stuck.policy.scaler_iteration, 5) << "the halted round changes no scaler";
  EXPECT_EQ(stuck.policy.consecutive_skips, 6u);
}

TEST(DecidePolicyTest, HysteresisAtTheMinimumIsLimitedByTheSkips) {
  JobSpec spec = Spec();
  spec.max_consecutive_skips = 2;
  spec.policy.loss_scaler->initial_scale_power = 0;
  spec.policy.loss_scaler->hysteresis = 50;
  DecideInput input = InputOf(spec);
  EXPECT_FALSE(RunRounds(&input, {Overflow(), Overflow()}).halted);
  EXPECT_TRUE(RunRounds(&input, {Overflow()}).halted);
}

TEST(DecidePolicyTest, UploadsMoveNothing) {
  DecideInput input = InputOf(Spec());
  RunRounds(&input, {Clean(), Overflow()});
  input.upload = UploadPlane::kWeights;
  const auto decision = Decide(input, {Overflow()});
  EXPECT_TRUE(decision->applied);
  EXPECT_EQ(decision->policy, input.policy);
}

TEST(DecidePolicyTest, AnUploadOfStateMaySetTheSchedulesPosition) {
  DecideInput input = InputOf(Spec());
  RunRounds(&input, {Clean(), Overflow()});
  input.upload = StatePlaneOf(2);
  input.opt_step = 41;
  input.schedule_index = 39;
  PolicyState wanted = input.policy;
  wanted.opt_step = 41;
  wanted.schedule_index = 39;
  EXPECT_EQ(Decide(input, {Overflow()})->policy, wanted) << "and nothing else";
}

TEST(DecidePolicyTest, RatesOfTheLeadServersVoteAreRemembered) {
  DecideInput input = InputOf(Spec());
  const Decision decision = RunRounds(&input, {Overflow()});
  EXPECT_EQ(decision.policy.rates, kRates) << "also of a round that is skipped";
  input.upload = UploadPlane::kWeights;
  Vote uploaded = Clean();
  uploaded.rates.clear();
  EXPECT_EQ(Decide(input, {uploaded})->policy.rates, kRates);
  EXPECT_EQ(ResultOf(7, decision).policy, decision.policy);
}

TEST(DecidePolicyTest, RatesOfTooFewOrTooManyGroupsAreRefused) {
  const DecideInput input = InputOf(Spec());
  for (const size_t groups : {0u, 2u}) {
    Vote vote = Clean();
    vote.rates.resize(groups);
    const absl::Status refused = Decide(input, {vote}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInternal) << groups;
    EXPECT_EQ(refused.message(),
              "server 0 votes for rates of " + std::to_string(groups) + " groups of 1");
  }
}

TEST(DecidePolicyTest, AScheduleWithAStaticScaleHaltsAsWithoutOne) {
  JobSpec spec = Spec();
  spec.policy.loss_scaler.reset();
  spec.loss_scale = 16;
  spec.max_consecutive_skips = 1;
  DecideInput input = InputOf(spec);
  EXPECT_EQ(RunRounds(&input, {Clean()}).grad_scale[0], 1.0f / 16);
  EXPECT_EQ(input.policy.schedule_index, 0);
  EXPECT_FALSE(RunRounds(&input, {Overflow()}).halted);
  EXPECT_TRUE(RunRounds(&input, {Overflow()}).halted);
  EXPECT_EQ(input.policy.loss_scale, 16);
  EXPECT_EQ(input.policy.skipped, 2u);
}

TEST(DecidePolicyTest, AJobWithoutAPolicyKeepsVersionOne) {
  JobSpec spec = Spec();
  spec.policy = PolicySpec();
  DecideInput input = InputOf(spec);
  const Decision decision = RunRounds(&input, {Clean(), Overflow()});
  EXPECT_EQ(decision.policy, (PolicyState{.loss_scale = 1, .opt_step = 1, .consecutive_skips = 1}));
  EXPECT_FALSE(ResultOf(1, decision).policy.has_value());
}

TEST(DecidePolicyTest, GradientsMustCarryTheScaleOfTheRound) {
  const JobSpec spec = Spec();
  const PolicyState policy = StartPolicy(spec);
  EXPECT_EQ(LossScaleRefusal(spec, policy, {1, 4}), "");
  EXPECT_EQ(LossScaleRefusal(spec, policy, {1, 8}),
            "slot 1 multiplied its loss by 8; the loss scale of this round is 4. Take the one that "
            "the last round or the attach has reported, and run the backward pass again");
  EXPECT_NE(LossScaleRefusal(spec, policy, {1, 0}).find("slot 1 does not say"), std::string::npos);
  EXPECT_NE(LossScaleRefusal(spec, policy, {1, std::numeric_limits<double>::quiet_NaN()}), "");
  JobSpec fixed = Spec();
  fixed.policy = PolicySpec();
  EXPECT_EQ(LossScaleRefusal(fixed, StartPolicy(fixed), {1, 0}), "");
  EXPECT_NE(LossScaleRefusal(fixed, StartPolicy(fixed), {1, 2}), "");
}

}  // namespace
}  // namespace ballast
