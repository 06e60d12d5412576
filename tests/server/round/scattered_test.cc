// RoundFsm in a job whose gradients are scattered: each extent has one contributor, dealt by
// position, all slots begin with the same presence, and the sum is divided by the world.
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

class Scattered : public testing::FsmFixture {
 public:
  explicit Scattered(uint32_t world) : FsmFixture(PlanOf(world)) { Init(); }
  // The extents of which `slot` pushes all frames without a refusal, while the round collects;
  // those of the others are refused.
  std::vector<uint32_t> Pushes(uint32_t slot) {
    std::vector<uint32_t> taken;
    for (const uint32_t extent : fsm_.owned()) {
      if (fsm_.phase() != Phase::kCollect) break;
      refusals_.clear();
      Effects effects;
      for (const ChunkRange& range : ChunkRanges(fsm_.layout(), extent, testing::kFsmChunk, {})) {
        FrameHeader frame =
            MakeFrame(plan_, FrameKind::kGradient, slot, fsm_.round(), extent, range);
        frame.epoch = fsm_.plan().epoch.epoch;
        Append(&effects, Deliver(frame));
      }
      Reduce(&effects);
      Append(&effects_, effects);
      if (refusals_.empty()) {
        taken.push_back(extent);
      } else {
        EXPECT_EQ(FirstRefusal(), Reason::kNotContributor);
      }
    }
    return taken;
  }
  // Extents of the server's share that the deal gives to number `index` of `world` slots.
  std::vector<uint32_t> Dealt(uint32_t index, uint32_t world) const {
    std::vector<uint32_t> dealt;
    for (const uint32_t extent : fsm_.owned()) {
      if (fsm_.layout().Turn(extent) % world == index) dealt.push_back(extent);
    }
    return dealt;
  }
  Effects effects_;

 private:
  static JobPlan PlanOf(uint32_t world) {
    JobPlan plan = testing::Durable(MakePlan({700, 300}, world, {0}));
    plan.spec.variable_world = true;
    plan.spec.gradients = Gradients::kScattered;
    plan.epoch.contributors = ContributorsOf(plan.spec, plan.epoch.members);
    return plan;
  }
};

TEST(ScatteredTest, EachExtentHasOneContributorAndTheSumIsDividedByTheWorld) {
  Scattered f(3);
  for (uint32_t slot = 0; slot < 3; ++slot) f.Begin(slot);
  size_t taken = 0;
  for (uint32_t slot = 0; slot < 3; ++slot) {
    const std::vector<uint32_t> pushed = f.Pushes(slot);
    EXPECT_FALSE(pushed.empty());
    EXPECT_EQ(pushed, f.Dealt(slot, 3)) << "slot " << slot;
    taken += pushed.size();
  }
  EXPECT_EQ(taken, f.fsm_.owned().size());
  ASSERT_EQ(f.fsm_.phase(), Phase::kPreparing);
  const Effects durable = f.Feed(DurableInput{});
  ASSERT_NE(First<ApplyRound>(durable), nullptr);
  EXPECT_EQ(First<ApplyRound>(durable)->decision.grad_scale[0], 1.0f / 3);
}

TEST(ScatteredTest, ASlotOwesItsOwnExtentsAlone) {
  Scattered f(3);
  f.Begin(1);
  EXPECT_EQ(f.fsm_.CompleteFor(1).size() + f.Dealt(1, 3).size(), f.fsm_.owned().size());
}

TEST(ScatteredTest, TheLeadTrainerMayOweAllUntilItBegins) {
  Scattered f(3);
  EXPECT_TRUE(f.fsm_.CompleteFor(0).empty()) << "it may upload";
  f.Begin(0);
  EXPECT_EQ(f.fsm_.CompleteFor(0).size() + f.Dealt(0, 3).size(), f.fsm_.owned().size());
}

TEST(ScatteredTest, AnotherWorldDealsAnewAndTheRoundBeginsAgain) {
  Scattered f(3);
  for (uint32_t slot = 0; slot < 3; ++slot) f.Begin(slot);
  EXPECT_FALSE(f.Pushes(2).empty());
  ++f.plan_.epoch.epoch;
  f.plan_.epoch.members.erase(f.plan_.epoch.members.begin() + 1);
  f.plan_.epoch.contributors = ContributorsOf(f.plan_.spec, f.plan_.epoch.members);
  Effects effects;
  ASSERT_TRUE(f.fsm_.Adopt(f.plan_, 64, &effects).ok());
  f.Begin(0), f.Begin(2);
  EXPECT_EQ(f.Pushes(0), f.Dealt(0, 2));
  EXPECT_EQ(f.Pushes(2), f.Dealt(1, 2)) << "slot 2 is the second member now";
  EXPECT_EQ(f.fsm_.phase(), Phase::kPreparing);
  const Effects durable = f.Feed(DurableInput{});
  ASSERT_NE(First<ApplyRound>(durable), nullptr);
  EXPECT_EQ(First<ApplyRound>(durable)->decision.grad_scale[0], 0.5f);
}

TEST(ScatteredTest, APresenceThatOneSlotDoesNotShareIsADifference) {
  Scattered f(2);
  f.Begin(0);
  const Effects effects = f.Begin(1, {true, false});
  ASSERT_NE(First<FailJob>(effects), nullptr);
  const absl::Status& status = First<FailJob>(effects)->status;
  EXPECT_EQ(ReasonOf(status), Reason::kGradientMismatch);
  EXPECT_NE(std::string(status.message()).find("slot 1 has none for tensor \"t1\""),
            std::string::npos)
      << status;
  EXPECT_NE(std::string(status.message()).find("push zeros"), std::string::npos) << status;
}

}  // namespace
}  // namespace ballast::server
