// EpochChange: where the next epoch starts, for every combination of answers that the protocol
// allows, and a refusal of every other.
#include "server/home/epoch_change.h"

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "common/base/reason.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

JobPlan PlanOf(uint32_t servers) {
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < servers; ++i) ids.push_back(3 * i + 1);
  JobPlan plan = testing::MakePlan({300}, /*world=*/3, ids);
  plan.epoch.epoch = 6;
  plan.epoch.start_round = 2;
  plan.sealed_epoch = 6;
  plan.resting = true;
  return plan;
}

absl::StatusOr<JobPlan> Next(const std::vector<SealAnswer>& answers,
                             const std::map<uint32_t, uint64_t>& newcomers = {{1, 55}}) {
  const JobPlan plan = PlanOf(static_cast<uint32_t>(answers.size()));
  EpochChange change(plan);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_FALSE(change.AllSealed());
    change.OnSealed(plan.servers[i], answers[i]);
  }
  EXPECT_TRUE(change.AllSealed());
  return change.NextPlan({.newcomers = newcomers});
}

struct Row {
  const char* why;
  std::vector<SealAnswer> answers;  // {version, prepared}
  uint64_t start_round;
};

void PrintTo(const Row& row, std::ostream* os) { *os << row.why; }

class StartRound : public ::testing::TestWithParam<Row> {};

TEST_P(StartRound, FollowsFromTheAnswers) {
  const auto next = Next(GetParam().answers);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->epoch.start_round, GetParam().start_round);
  EXPECT_EQ(next->epoch.epoch, 7u);
  EXPECT_EQ(next->sealed_epoch, 0u);
  EXPECT_FALSE(next->resting);
}

INSTANTIATE_TEST_SUITE_P(
    Table, StartRound,
    ::testing::Values(
        Row{"one server, nothing prepared: the round is run again", {{9, false}}, 9},
        Row{"one server that prepared applies the round by itself", {{9, true}}, 10},
        Row{"all prepared: nobody can stop the round", {{9, true}, {9, true}, {9, true}}, 10},
        Row{"one did not, and never will", {{9, true}, {9, false}, {9, true}}, 9},
        Row{"nobody did", {{9, false}, {9, false}, {9, false}}, 9},
        Row{"one still applies the round before", {{9, false}, {8, true}, {9, false}}, 9},
        Row{"the first still applies the round before", {{8, true}, {9, false}, {9, false}}, 9},
        Row{"all but one still do", {{8, true}, {8, true}, {9, false}}, 9},
        Row{"one is ahead and has prepared", {{8, true}, {9, true}, {9, true}}, 9},
        Row{"before the first round", {{1, false}, {1, false}}, 1}));

class Contradiction : public ::testing::TestWithParam<Row> {};

TEST_P(Contradiction, IsRefusedWithTheServerAndBothRounds) {
  const absl::Status status = Next(GetParam().answers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << GetParam().why;
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost);
  EXPECT_NE(std::string(status.message()).find("at round 8"), std::string::npos) << status;
  EXPECT_EQ(FieldsOf(status).server, 4);
  EXPECT_EQ(FieldsOf(status).round, GetParam().start_round) << "the newest one";
}

INSTANTIATE_TEST_SUITE_P(
    Table, Contradiction,
    ::testing::Values(
        Row{"round 8 ended elsewhere without this server's vote", {{9, false}, {8, false}}, 9},
        Row{"two rounds behind, although prepared", {{10, true}, {8, true}}, 10},
        Row{"two rounds behind", {{10, false}, {8, false}, {10, false}}, 10}));

TEST(EpochChangeTest, NewcomersGetTheirSeatsAndEverybodyElseKeepsTheirs) {
  const auto next = Next({{9, false}, {9, false}}, {{0, 70}, {2, 72}});
  ASSERT_TRUE(next.ok()) << next.status();
  const JobPlan old = PlanOf(2);
  ASSERT_EQ(next->epoch.members.size(), 3u);
  EXPECT_EQ(next->epoch.members[0].incarnation, 70u);
  EXPECT_EQ(next->epoch.members[1].incarnation, old.epoch.members[1].incarnation);
  EXPECT_EQ(next->epoch.members[2].incarnation, 72u);
  for (uint32_t slot = 0; slot < 3; ++slot) EXPECT_EQ(next->epoch.members[slot].slot, slot);
  EXPECT_EQ(next->epoch.contributors[0].slots, old.epoch.contributors[0].slots);
  EXPECT_EQ(next->epoch.contributors[0].divisor, old.epoch.contributors[0].divisor);
  EXPECT_EQ(next->job, old.job);
  EXPECT_EQ(next->owner, old.owner);
  EXPECT_EQ(next->servers, old.servers);
}

TEST(EpochChangeTest, TheFirstAnswerOfAServerCounts) {
  // It answers again when a call is repeated; meanwhile the round it had prepared may have ended.
  EpochChange change(PlanOf(2));
  change.OnSealed(1, {9, true});
  change.OnSealed(1, {10, false});
  EXPECT_FALSE(change.AllSealed());
  change.OnSealed(4, {9, true});
  const auto next = change.NextPlan({});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->epoch.start_round, 10u);
}

// --- Worlds that change -------------------------------------------------------------------------

std::vector<uint32_t> SlotsOf(const JobPlan& plan) {
  std::vector<uint32_t> slots;
  for (const Member& member : plan.epoch.members) slots.push_back(member.slot);
  return slots;
}

JobPlan NextOf(const SeatChanges& changes, const std::vector<SealAnswer>& answers) {
  const JobPlan plan = PlanOf(static_cast<uint32_t>(answers.size()));
  EpochChange change(plan);
  for (size_t i = 0; i < answers.size(); ++i) change.OnSealed(plan.servers[i], answers[i]);
  const auto next = change.NextPlan(changes);
  EXPECT_TRUE(next.ok()) << next.status();
  return next.value_or(JobPlan());
}

TEST(EpochChangeTest, TheMeanIsOverThoseWhoStay) {
  const JobPlan next = NextOf({.gone = {1}}, {{9, false}, {9, false}});
  EXPECT_EQ(SlotsOf(next), (std::vector<uint32_t>{0, 2}));
  for (const ContributorSet& set : next.epoch.contributors) {
    EXPECT_EQ(set.slots, (std::vector<uint32_t>{0, 2}));
    EXPECT_EQ(set.divisor, 2);
  }
}

TEST(EpochChangeTest, OfReducedGradientsTheLowestOfThoseWhoStayPushesThem) {
  JobPlan plan = PlanOf(1);
  plan.spec.gradients = Gradients::kReduced;
  EpochChange change(plan);
  change.OnSealed(plan.servers[0], {9, false});
  const auto next = change.NextPlan({.newcomers = {{5, 75}}, .gone = {0}});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(SlotsOf(*next), (std::vector<uint32_t>{1, 2, 5}));
  EXPECT_EQ(next->epoch.contributors, (std::vector<ContributorSet>{{{1}, 1}}));
}

TEST(EpochChangeTest, NewcomersMakeTheWorldLargerAndMayLeaveSeatsEmpty) {
  const JobPlan next = NextOf({.newcomers = {{3, 73}, {6, 76}}, .gone = {0}}, {{9, true}});
  EXPECT_EQ(SlotsOf(next), (std::vector<uint32_t>{1, 2, 3, 6}));
  EXPECT_EQ(next.epoch.seats(), 7u);
  EXPECT_EQ(next.epoch.contributors[0].divisor, 4);
  EXPECT_TRUE(next.epoch.Holds(6, 76));
  EXPECT_EQ(next.epoch.Find(4), nullptr);
}

TEST(EpochChangeTest, ANewcomerTakesTheSeatOfOneWhoIsGone) {
  const JobPlan next = NextOf({.newcomers = {{1, 71}}, .gone = {1}}, {{9, false}});
  EXPECT_EQ(SlotsOf(next), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_TRUE(next.epoch.Holds(1, 71));
}

TEST(EpochChangeTest, SomebodyStaysAlways) {
  const JobPlan next = NextOf({.gone = {0, 1, 2}}, {{9, false}});
  EXPECT_EQ(SlotsOf(next), (std::vector<uint32_t>{0, 1, 2}));
}

// --- The fewest that continue
// -----------------------------------------------------------------------

JobPlan NextOfAtLeast(uint32_t min_world, const SeatChanges& changes) {
  JobPlan plan = PlanOf(1);
  plan.epoch.min_world = min_world;
  EpochChange change(plan);
  change.OnSealed(plan.servers[0], {9, false});
  return change.NextPlan(changes).value_or(JobPlan());
}

TEST(EpochChangeTest, SoManySeatsStayWhoeverIsGone) {
  EXPECT_EQ(SlotsOf(NextOfAtLeast(2, {.gone = {1}})), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(SlotsOf(NextOfAtLeast(2, {.gone = {0, 1}})), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(SlotsOf(NextOfAtLeast(2, {.newcomers = {{4, 74}}, .gone = {0, 1}})),
            (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(SlotsOf(NextOfAtLeast(3, {.newcomers = {{4, 74}}, .gone = {0, 1}})),
            (std::vector<uint32_t>{0, 2, 4}));
}

TEST(EpochChangeTest, NewcomersSayHowManyThatAreButNotMoreThanThereAre) {
  const SeatChanges one = {.newcomers = {{1, 71}}, .gone = {0, 2}, .min_world = 1};
  EXPECT_EQ(SlotsOf(NextOfAtLeast(3, one)), std::vector<uint32_t>{1});
  EXPECT_EQ(NextOfAtLeast(3, one).epoch.min_world, 1u);
  EXPECT_EQ(NextOfAtLeast(1, {.newcomers = {{3, 73}}, .min_world = 9}).epoch.min_world, 4u);
  EXPECT_EQ(NextOfAtLeast(2, {.gone = {1}}).epoch.min_world, 2u) << "nobody has said otherwise";
}

TEST(EpochChangeTest, AWorldShrinksToItsLeastAndNoFurther) {
  EpochRecord epoch = PlanOf(1).epoch;
  epoch.min_world = 2;
  const uint64_t zero = epoch.members[0].incarnation, one = epoch.members[1].incarnation;
  EXPECT_FALSE(MayShrink(epoch, {}));
  EXPECT_TRUE(MayShrink(epoch, {{0, zero}}));
  EXPECT_FALSE(MayShrink(epoch, {{0, zero + 1}})) << "another process has the seat";
  EXPECT_FALSE(MayShrink(epoch, {{0, zero}, {1, one}}));
}

TEST(EpochChangeTest, AWorldBeginsAgainAsAWholeOrAfterAWhileWithEnough) {
  Gathering gathering{.asking = {{0, 1}, {2, 3}}, .world = 3, .min_world = 2};
  EXPECT_EQ(gathering.Missing(), std::vector<uint32_t>{1});
  EXPECT_FALSE(gathering.Complete());
  gathering.over = true;
  EXPECT_TRUE(gathering.Complete());
  gathering.min_world = 3;
  EXPECT_FALSE(gathering.Complete());
  gathering.over = false;
  gathering.asking[1] = 2;
  EXPECT_TRUE(gathering.Complete());
}

TEST(EpochChangeTest, TheSeatThatOwesInitialWeightsIsNotGivenUp) {
  const std::vector<SealAnswer> answers = {{1, false, false}, {1, false, true}};
  const JobPlan waits = NextOf({.gone = {0, 2}}, answers);
  EXPECT_EQ(SlotsOf(waits), (std::vector<uint32_t>{0, 1}));
  EXPECT_FALSE(waits.epoch.init_again);
  // Its next process uploads them all: the uploads of the first may have been different.
  const JobPlan taken = NextOf({.newcomers = {{0, 70}}}, answers);
  EXPECT_TRUE(taken.epoch.init_again);
  // Another seat's newcomer changes nothing of that, and nor does one when nothing is missing.
  EXPECT_FALSE(NextOf({.newcomers = {{1, 70}}}, answers).epoch.init_again);
  EXPECT_FALSE(NextOf({.newcomers = {{0, 70}}}, {{1, false}, {1, false}}).epoch.init_again);
}

TEST(EpochChangeTest, TheTightestServerSaysHowManyTrainersThereMayBe) {
  const JobPlan plan = PlanOf(2);
  EpochChange change(plan, /*world=*/7);
  change.OnSealed(plan.servers[0],
                  {.version = 1, .world_max = 9, .refusal = absl::InternalError("")});
  EXPECT_EQ(change.Grant().granted, 7u) << "no more than are wanted";
  EXPECT_TRUE(change.Grant().refusal.ok());
  const absl::Status quota = absl::ResourceExhaustedError("a quota");
  change.OnSealed(plan.servers[1], {.version = 1, .world_max = 5, .refusal = quota});
  EXPECT_EQ(change.Grant().wanted, 7u);
  EXPECT_EQ(change.Grant().granted, 5u);
  EXPECT_EQ(change.Grant().refusal, quota);
}

}  // namespace
}  // namespace ballast::server
