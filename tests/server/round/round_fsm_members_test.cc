// RoundFsm and the members of a job: seats that are empty, left, lost and taken again.
#include <gtest/gtest.h>

#include <string>

#include "server/round/job_plan.h"
#include "tests/server/round/fsm_fixture.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Count;
using testing::Durable;
using testing::First;
using testing::Grown;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;
using Fixture = testing::FsmFixture;
constexpr uint32_t kChunk = testing::kFsmChunk;

// The next epoch of `plan`, with these slots; those that were not there before are new processes.
JobPlan NextEpoch(const JobPlan& plan, const std::vector<uint32_t>& slots, uint64_t start_round) {
  JobPlan next = plan;
  next.spec.variable_world = true;
  ++next.epoch.epoch;
  next.epoch.start_round = start_round;
  next.epoch.members.clear();
  for (const uint32_t slot : slots) {
    const Member* const before = plan.epoch.Find(slot);
    next.epoch.members.push_back({slot, before != nullptr ? before->incarnation : 900 + slot});
  }
  next.epoch.contributors = AllContribute(next.epoch.members, plan.spec.group_count);
  return next;
}

class World : public Fixture {
 public:
  explicit World(uint32_t world) : Fixture(Variable(MakePlan({300}, world, {0}))) {}
  Effects Adopt(const std::vector<uint32_t>& slots, bool init_again = false) {
    Effects effects;
    plan_ = NextEpoch(plan_, slots, fsm_.round());
    plan_.epoch.init_again = init_again;
    const absl::Status adopted = fsm_.Adopt(plan_, 64, &effects);
    EXPECT_TRUE(adopted.ok()) << adopted;
    return effects;
  }
  FrameHeader Frame(FrameKind kind, uint32_t slot, uint32_t extent, ChunkRange range) const {
    FrameHeader header = MakeFrame(plan_, kind, slot, fsm_.round(), extent, range);
    header.epoch = plan_.epoch.epoch;
    if (const Member* member = plan_.epoch.Find(slot)) header.incarnation = member->incarnation;
    return header;
  }
  Effects Send(FrameKind kind, uint32_t slot) {
    Effects all;
    for (const uint32_t extent : fsm_.owned()) {
      for (const ChunkRange& range : ChunkRanges(fsm_.layout(), extent, kChunk, {})) {
        Append(&all, Deliver(Frame(kind, slot, extent, range)));
      }
    }
    Reduce(&all);
    return all;
  }
  // One round of all `slots`; its decision.
  Decision Round(const std::vector<uint32_t>& slots) {
    for (const uint32_t slot : slots) Begin(slot);
    for (const uint32_t slot : slots) Send(FrameKind::kGradient, slot);
    EXPECT_EQ(fsm_.phase(), Phase::kPreparing);
    const Effects durable = Feed(DurableInput{});
    const auto* apply = First<ApplyRound>(durable);
    if (apply == nullptr) {
      ADD_FAILURE() << "not applied";
      return {};
    }
    const Decision decision = apply->decision;
    Feed(SteppedInput{});
    return decision;
  }

 private:
  static JobPlan Variable(JobPlan plan) {
    plan.spec.durability = Durability::kPower;
    plan.spec.variable_world = true;
    return plan;
  }
};

TEST(RoundFsmTest, EveryRoundIsDividedByTheWorldOfItsEpoch) {
  World f(2);
  f.Init();
  EXPECT_EQ(f.Round({0, 1}).grad_scale[0], 1.0f / 2);
  f.Adopt({1});
  EXPECT_EQ(f.Round({1}).grad_scale[0], 1.0f);
  f.Adopt({1, 2, 5});
  EXPECT_EQ(f.Round({1, 2, 5}).grad_scale[0], 1.0f / 3);
  JobStatus status;
  f.fsm_.FillStatus(&status);
  EXPECT_EQ(status.world, 3u);
  ASSERT_EQ(status.slots.size(), 3u);
  EXPECT_EQ(status.slots[2].slot, 5u);
}

TEST(RoundFsmTest, InitialWeightsThatAreSentAgainAreThoseOfTheNewestGroupsOnly) {
  World f(2);
  f.Init();
  f.Round({0, 1});
  f.plan_ = Grown(f.plan_, 100, 2);
  ASSERT_TRUE(f.fsm_.Extend(f.plan_, LayoutOf(f.plan_), 8).ok());
  f.Adopt({0, 1}, /*init_again=*/true);
  EXPECT_EQ(f.fsm_.InitMissing(), std::vector<uint32_t>{3});
}

TEST(RoundFsmTest, UserStatesOfALargerWorldMayTakeNoMoreThanTheLogKeepsRoomFor) {
  World f(2);
  f.Init();
  std::vector<uint32_t> slots;
  for (uint32_t slot = 0; slot < 9; ++slot) slots.push_back(slot);
  f.Adopt(slots);
  for (const uint32_t slot : slots) {
    RoundBegin begin = MakeBegin(1);
    begin.user_state = std::string(kUserStateBytesMax, 'x');
    const Effects effects = f.Feed(BeginInput{slot, begin});
    EXPECT_EQ(Count<FailSlot>(effects), slot < 8 ? 0u : 1u) << slot;
  }
}

TEST(RoundFsmTest, AnEmptySeatIsNeitherWaitedForNorHeard) {
  World f(3);
  f.Init();
  f.Adopt({0, 2});
  for (const uint32_t slot : {0u, 2u}) f.Begin(slot);
  const FrameHeader stray = f.Frame(FrameKind::kGradient, 1, f.fsm_.owned()[0], {0, 4});
  EXPECT_EQ(f.RefusalOf(stray), Reason::kWrongIncarnation);
  f.Send(FrameKind::kGradient, 0);
  f.Send(FrameKind::kGradient, 2);
  EXPECT_EQ(f.fsm_.phase(), Phase::kPreparing);
}

TEST(RoundFsmTest, InAVariableWorldTheOthersGoOnWithoutWhoHasLeft) {
  World f(2);
  f.Init();
  f.Begin(0);
  const Effects left = f.Feed(SlotLeftInput{1});
  EXPECT_EQ(Count<FailJob>(left), 0u);
  EXPECT_EQ(f.fsm_.phase(), Phase::kCollect);
  f.Feed(SealInput{});
  f.Adopt({0});
  EXPECT_EQ(f.Round({0}).grad_scale[0], 1.0f);
  f.plan_.epoch.min_world = 2;  // Unless fewer would be left than there must be.
  f.Adopt({0, 1});
  f.Begin(0);
  EXPECT_EQ(Count<FailJob>(f.Feed(SlotLeftInput{1})), 1u);
}

// A job that rested, and whose process in slot 0 was started again.
Fixture GoneOnWith() {
  JobPlan plan = Durable(MakePlan({300}, 2, {0}));
  plan.resting = true;
  plan.resting_round = 1;
  Fixture f(plan);
  plan.resting = false;
  plan.resting_round = 0;
  ++plan.epoch.epoch;
  plan.epoch.members[0].incarnation = 900;
  Effects effects;
  EXPECT_TRUE(f.fsm_.Adopt(plan, 64, &effects).ok());
  EXPECT_TRUE(effects.empty());
  EXPECT_TRUE(f.Feed(SlotBackInput{0}).empty());
  return f;
}

// A seal records the plan. A server that started again with a record of rest would not serve it.
TEST(RoundFsmTest, AJobThatWasWokenIsNotRecordedAsResting) {
  const Fixture f = GoneOnWith();
  EXPECT_FALSE(f.fsm_.plan().resting);
  EXPECT_EQ(f.fsm_.plan().resting_round, 0u);
}

TEST(RoundFsmTest, AJobThatRestedRestsAgainWithoutThoseWhoDidNotComeBack) {
  Fixture f = GoneOnWith();
  EXPECT_EQ(Count<FinishJob>(f.Feed(SlotLeftInput{0})), 1u);

  Fixture both = GoneOnWith();
  both.Feed(SlotBackInput{1});
  EXPECT_EQ(Count<FinishJob>(both.Feed(SlotLeftInput{0})), 0u);
  EXPECT_EQ(Count<FinishJob>(both.Feed(SlotLeftInput{1})), 1u);
}

TEST(RoundFsmTest, AJobThatRestedWaitsForThoseWhoAreNotBackYet) {
  Fixture f = GoneOnWith();
  EXPECT_TRUE(f.Feed(SlotLostInput{0, "killed"}).empty()) << "its next process may come";
  EXPECT_TRUE(f.Feed(SlotLostInput{1, "it never opened its stream"}).empty());
  f.Feed(SlotBackInput{0});
  EXPECT_EQ(Count<FailJob>(f.Begin(0)), 0u);
}

TEST(RoundFsmTest, WhoHasLeftStaysGoneInTheNextEpoch) {
  World f(3);
  f.Init();
  f.Feed(SlotLeftInput{0});
  f.Feed(SlotLeftInput{2});
  EXPECT_EQ(Count<FinishJob>(f.Adopt({0, 1, 2})), 0u);
  EXPECT_TRUE(f.fsm_.Left(0));
  // Nobody else is left.
  EXPECT_EQ(Count<FinishJob>(f.Adopt({0, 2})), 1u);
  EXPECT_EQ(f.fsm_.phase(), Phase::kFinished);
}

TEST(RoundFsmTest, ASeatThatWasLeftAndTakenAgainIsNotGone) {
  World f(2);
  f.Init();
  f.Feed(SlotLeftInput{1});
  f.Adopt({0});
  f.Adopt({0, 1});
  EXPECT_FALSE(f.fsm_.Left(1));
  f.Round({0, 1});
}

TEST(RoundFsmTest, OfAPartlyReceivedExtentOfInitialWeightsNothingIsKept) {
  World f(2);
  const uint32_t first = f.fsm_.owned()[1], second = f.fsm_.owned()[2];
  const auto ranges = ChunkRanges(f.fsm_.layout(), first, kChunk, {});
  ASSERT_GT(ranges.size(), 1u);
  f.Deliver(f.Frame(FrameKind::kInit, 0, first, ranges[0]));
  for (const ChunkRange& range : ChunkRanges(f.fsm_.layout(), second, kChunk, {})) {
    f.Deliver(f.Frame(FrameKind::kInit, 0, second, range));
  }
  f.Adopt({0, 1});
  // The frame that was in is wanted again, and its extent is missing as a whole.
  EXPECT_EQ(f.fsm_.InitMissing().size(), f.fsm_.owned().size() - 1);
  EXPECT_EQ(f.RefusalOf(f.Frame(FrameKind::kInit, 0, first, ranges[0])), Reason::kUnspecified);
  EXPECT_TRUE(f.fsm_.InitComplete(second)) << "the same process sent it";
}

TEST(RoundFsmTest, InitialWeightsAreTakenAnewWhenTheRecordSaysSo) {
  World f(2);
  f.Init();
  EXPECT_EQ(f.fsm_.init_missing(), 0u);
  f.Adopt({1}, /*init_again=*/true);
  EXPECT_EQ(f.fsm_.init_missing(), f.fsm_.owned().size());
  const auto range = ChunkRanges(f.fsm_.layout(), f.fsm_.owned()[0], kChunk, {})[0];
  const FrameHeader stray = f.Frame(FrameKind::kInit, 0, f.fsm_.owned()[0], range);
  EXPECT_EQ(f.RefusalOf(stray), Reason::kWrongIncarnation);
  f.Send(FrameKind::kInit, 1);  // The first member is the one that uploads.
  EXPECT_EQ(f.fsm_.init_missing(), 0u);
  f.Round({1});
}

}  // namespace
}  // namespace ballast::server
