// RoundFsm in a job whose gradients are equal on every slot already: one slot contributes, all
// begin, and differing pushes are refused.
#include <gtest/gtest.h>

#include <string>

#include "server/round/job_plan.h"
#include "tests/server/round/fsm_fixture.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Count;
using testing::First;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;

// Members of the same processes, without those of a lower slot than `lowest`.
JobPlan Without(JobPlan plan, uint32_t lowest, uint64_t start_round) {
  ++plan.epoch.epoch;
  plan.epoch.start_round = start_round;
  std::erase_if(plan.epoch.members, [&](const Member& member) { return member.slot < lowest; });
  plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
  return plan;
}

class Reduced : public testing::FsmFixture {
 public:
  explicit Reduced(uint32_t world) : FsmFixture(PlanOf(world)) { Init(); }
  Effects BeginWith(uint32_t slot, std::vector<uint32_t> digests, std::vector<bool> presence = {}) {
    RoundBegin begin = MakeBegin(fsm_.round(), std::move(presence));
    begin.gradient_crc32c = std::move(digests);
    return Feed(BeginInput{slot, begin});
  }
  // Sends every frame of `slot` in the present epoch.
  Effects PushNow(uint32_t slot) {
    Effects all;
    refusals_.clear();
    const EpochRecord& epoch = fsm_.plan().epoch;
    for (const uint32_t extent : fsm_.owned()) {
      for (const ChunkRange& range : ChunkRanges(fsm_.layout(), extent, testing::kFsmChunk, {})) {
        FrameHeader frame =
            MakeFrame(plan_, FrameKind::kGradient, slot, fsm_.round(), extent, range);
        frame.epoch = epoch.epoch;
        Append(&all, Deliver(frame));
      }
    }
    Reduce(&all);
    return all;
  }

 private:
  static JobPlan PlanOf(uint32_t world) {
    JobPlan plan = testing::Durable(MakePlan({200, 100}, world, {0}));
    plan.spec.variable_world = true;
    plan.spec.gradients = Gradients::kReduced;
    plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
    return plan;
  }
};

TEST(ReducedTest, TheLowestSlotPushesForAllAndNothingIsDivided) {
  Reduced f(3);
  EXPECT_TRUE(First<AckSlot>(f.BeginWith(2, {}))->flush) << "it owes nothing";
  EXPECT_EQ(f.fsm_.CompleteFor(2).size(), f.fsm_.owned().size());
  f.BeginWith(0, {});
  f.PushNow(2);
  EXPECT_EQ(f.FirstRefusal(), Reason::kNotContributor);
  f.PushNow(0);
  EXPECT_EQ(f.FirstRefusal(), Reason::kUnspecified);
  EXPECT_EQ(f.fsm_.phase(), Phase::kCollect) << "slot 1 has not begun";
  f.BeginWith(1, {});
  ASSERT_EQ(f.fsm_.phase(), Phase::kPreparing);
  const Effects durable = f.Feed(DurableInput{});
  ASSERT_NE(First<ApplyRound>(durable), nullptr);
  EXPECT_EQ(First<ApplyRound>(durable)->decision.grad_scale[0], 1.0f);
}

TEST(ReducedTest, ANewLowestSlotPushesTheSameRound) {
  Reduced f(3);
  for (uint32_t slot = 0; slot < 3; ++slot) f.BeginWith(slot, {7, 8});
  f.plan_ = Without(f.plan_, 1, 1);
  Effects effects;
  ASSERT_TRUE(f.fsm_.Adopt(f.plan_, 64, &effects).ok());
  for (uint32_t slot = 1; slot < 3; ++slot) f.BeginWith(slot, {7, 8});
  f.PushNow(1);
  EXPECT_EQ(f.FirstRefusal(), Reason::kUnspecified);
  EXPECT_EQ(f.fsm_.phase(), Phase::kPreparing);
}

TEST(ReducedTest, DigestsThatDifferFailTheJobWithBothSlotsAndTheTensor) {
  Reduced f(3);
  f.BeginWith(0, {7, 8});
  f.PushNow(0);
  EXPECT_EQ(Count<FailJob>(f.BeginWith(1, {})), 0u) << "it has none to compare";
  const Effects effects = f.BeginWith(2, {7, 9});
  ASSERT_NE(First<FailJob>(effects), nullptr);
  const absl::Status& status = First<FailJob>(effects)->status;
  EXPECT_EQ(ReasonOf(status), Reason::kGradientMismatch);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FieldsOf(status).slot, 2);
  const std::string text(status.message());
  EXPECT_NE(text.find("gradients differ between slots 0 and 2 in round 1 (tensor \"t1\")"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Nothing of round 1 was applied"), std::string::npos) << text;
  EXPECT_EQ(f.fsm_.phase(), Phase::kFailed);
}

TEST(ReducedTest, DigestsAreComparedAfterASlotWithoutOne) {
  Reduced f(3);
  f.BeginWith(0, {});
  f.BeginWith(1, {7, 8});
  EXPECT_EQ(Count<FailJob>(f.BeginWith(2, {6, 8})), 1u);
}

TEST(ReducedTest, AGradientThatOneSlotLacksIsADifference) {
  Reduced f(2);
  f.BeginWith(0, {});
  const Effects effects = f.BeginWith(1, {}, {true, false});
  ASSERT_NE(First<FailJob>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kGradientMismatch);
  EXPECT_NE(std::string(First<FailJob>(effects)->status.message())
                .find("slot 1 has none for tensor \"t1\""),
            std::string::npos);
}

TEST(ReducedTest, PresenceMayBeSaidInTwoWays) {
  Reduced f(2);
  f.BeginWith(0, {});
  EXPECT_EQ(Count<FailJob>(f.BeginWith(1, {}, {true, true})), 0u);
}

TEST(ReducedTest, DigestsOfOtherThanAllTensorsAreRefused) {
  Reduced f(2);
  const Effects effects = f.BeginWith(0, {7});
  ASSERT_NE(First<FailSlot>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailSlot>(effects)->status), Reason::kBadFrame);
}

TEST(ReducedTest, ASlotThatBeginsOnceMoreWithOtherDigestsIsNotTheSame) {
  Reduced f(2);
  f.BeginWith(0, {7, 8});
  EXPECT_EQ(Count<FailSlot>(f.BeginWith(0, {7, 8})), 0u) << "its stream broke";
  EXPECT_EQ(Count<FailSlot>(f.BeginWith(0, {7, 9})), 1u);
}

}  // namespace
}  // namespace ballast::server
