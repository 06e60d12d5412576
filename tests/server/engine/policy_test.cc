// Loss scale and schedule in rounds: the fields of slots, those of the lead server's vote, and
// where a restarted server continues.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "absl/strings/match.h"
#include "tests/server/round/fsm_fixture.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Count;
using testing::Durable;
using testing::First;
using testing::MakeBegin;
using testing::MakePlan;
using Fixture = testing::FsmFixture;

// Begins at a scale of 4, which grows after a clean round.
JobPlan Scaled(JobPlan plan) {
  plan.spec.policy.loss_scaler =
      LossScalerConfig{.initial_scale_power = 2, .loss_scale_window = 1, .hysteresis = 1};
  return plan;
}
JobPlan Scheduled(JobPlan plan) {
  plan.spec.policy.schedule = WarmupLR{
      .warmup_max_lr = PerGroup(1.0), .warmup_num_steps = 4, .warmup_type = WarmupType::kLinear};
  return plan;
}

Effects BeginAt(Fixture* f, uint32_t slot, double loss_scale) {
  RoundBegin begin = MakeBegin(f->fsm_.round());
  begin.loss_scale = loss_scale;
  return f->Feed(BeginInput{slot, begin});
}

// One whole round of a job with one server and one slot; its decision.
Decision RunRound(Fixture* f, uint64_t nonfinite = 0) {
  BeginAt(f, 0, f->fsm_.policy().loss_scale);
  Effects effects = f->Push(0, {}, nonfinite);
  Fixture::Append(&effects, f->Feed(DurableInput{}));
  const auto* skipped = First<SkipRound>(effects);
  if (skipped != nullptr) return skipped->decision;
  const Decision decision = First<ApplyRound>(effects)->decision;
  f->Feed(SteppedInput{});
  return decision;
}

TEST(PolicyRoundTest, ASlotWithAnotherLossScaleIsRefusedAndTheOthersWait) {
  Fixture f(Durable(Scaled(MakePlan({128}, 2, {0}))));
  f.Init();
  EXPECT_EQ(Count<FailSlot>(BeginAt(&f, 0, 4)), 0u);
  const Effects effects = BeginAt(&f, 1, 8);
  const auto* failed = First<FailSlot>(effects);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->slot, 1u);
  EXPECT_EQ(ReasonOf(failed->status), Reason::kLossScaleMismatch) << failed->status;
  EXPECT_EQ(FieldsOf(failed->status).slot, 1);
  EXPECT_TRUE(absl::StrContains(failed->status.message(),
                                "slot 1 multiplied its loss by 8; the loss scale of this round "
                                "is 4"))
      << failed->status;
  EXPECT_EQ(Count<PrepareRound>(f.Push(0)), 0u);
  EXPECT_EQ(f.fsm_.policy(), StartPolicy(f.plan_.spec));
}

TEST(PolicyRoundTest, ADynamicScaleMustBeSaidAndAStaticOneNeedNot) {
  Fixture dynamic(Scaled(MakePlan({128}, 1, {0})));
  dynamic.Init();
  const Effects effects = dynamic.Begin(0);
  ASSERT_NE(First<FailSlot>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailSlot>(effects)->status), Reason::kLossScaleMismatch);
  Fixture fixed(Scheduled(MakePlan({128}, 1, {0})));
  fixed.Init();
  EXPECT_EQ(Count<FailSlot>(fixed.Begin(0)), 0u);
}

TEST(PolicyRoundTest, AnOverflowLowersTheScaleThatTheNextRoundMustCarry) {
  Fixture f(Scaled(MakePlan({128}, 1, {0})));
  f.Init();
  EXPECT_FALSE(RunRound(&f, 1).applied);
  EXPECT_EQ(f.fsm_.policy().loss_scale, 2);
  EXPECT_EQ(Count<FailSlot>(BeginAt(&f, 0, 4)), 1u);
}

TEST(PolicyRoundTest, TheVoteOfTheLeadServerHasTheRatesAndScalarsOfTheSchedule) {
  Fixture f(Scheduled(MakePlan({128}, 1, {0})));
  f.Init();
  const double expected[] = {0, 0, 0.25, 0.5, 0.75, 1, 1};
  for (const double lr : expected) {
    const Decision decision = RunRound(&f);
    ASSERT_EQ(decision.policy.rates.size(), 1u);
    EXPECT_EQ(decision.policy.rates[0], (GroupRates{lr, 0.9, 0.999}));
    // The decay of AdamW: 1 - lr * weight_decay.
    const float decay = static_cast<float>(1 - lr * 0.1);
    EXPECT_EQ(decision.scalars[0].bits[0], std::bit_cast<uint32_t>(decay));
  }
  EXPECT_EQ(f.fsm_.policy().schedule_index, 6);
  RunRound(&f, 1);
  EXPECT_EQ(f.fsm_.policy().schedule_index, 6) << "a skipped round moves no schedule";
}

TEST(PolicyRoundTest, AllServersComeToTheSamePolicy) {
  const JobPlan plan = Scheduled(Scaled(MakePlan({128, 128}, 1, {0, 4})));
  Fixture lead(plan, 0);
  Fixture other(plan, 4);
  Vote votes[2];
  Fixture* const both[] = {&lead, &other};
  for (int i = 0; i < 2; ++i) {
    both[i]->Init();
    BeginAt(both[i], 0, 4);
    both[i]->Push(0);
    votes[i] = First<SendVote>(both[i]->Feed(DurableInput{}))->vote;
  }
  EXPECT_EQ(votes[0].rates.size(), 1u);
  EXPECT_TRUE(votes[1].rates.empty());
  const Effects a = lead.Feed(VoteInput{1, 1, votes[1]});
  const Effects b = other.Feed(VoteInput{1, 1, votes[0]});
  ASSERT_TRUE(First<ApplyRound>(a) != nullptr && First<ApplyRound>(b) != nullptr);
  EXPECT_EQ(First<ApplyRound>(a)->decision.policy, First<ApplyRound>(b)->decision.policy);
  EXPECT_EQ(First<ApplyRound>(b)->decision.policy.rates, votes[0].rates);
}

TEST(PolicyRoundTest, ARestartedServerContinuesWithPolicyAndVote) {
  const JobPlan plan = Durable(Scheduled(Scaled(MakePlan({128}, 1, {0}))));
  Fixture f(plan);
  f.Init();
  RunRound(&f);
  RunRound(&f);
  EXPECT_EQ(f.fsm_.policy().loss_scale, 8);
  BeginAt(&f, 0, 8);
  const PreparedRecord prepared = First<PrepareRound>(f.Push(0))->record;
  EXPECT_EQ(prepared.policy, f.fsm_.policy());
  EXPECT_EQ(prepared.vote.rates.size(), 1u);

  Fixture again(plan);
  Effects effects;
  again.fsm_.Restore({.round = 3,
                      .policy = prepared.policy,
                      .tensor_step = prepared.tensor_step,
                      .prepared = prepared},
                     &effects);
  ASSERT_NE(First<ApplyRound>(effects), nullptr);
  Effects first = f.Feed(DurableInput{});
  EXPECT_EQ(First<ApplyRound>(effects)->decision.policy, First<ApplyRound>(first)->decision.policy);
}

}  // namespace
}  // namespace ballast::server
