// LAMB's ratios out of second votes, and a RoundFsm that is fed by hand through such a round.
#include "server/round/ratios.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reason.h"
#include "server/round/scalar_bits.h"
#include "tests/server/round/fsm_fixture.h"

namespace ballast::server {
namespace {

using testing::BeginOf;
using testing::Count;
using testing::Durable;
using ::testing::ElementsAre;
using testing::First;
using testing::FsmFixture;
using ::testing::HasSubstr;
using testing::LayoutOf;
using testing::MakePlan;
using testing::WithLamb;

// Extents of 128: tensor 0 is in extents 0 and 1, tensor 1 in extent 1. Servers 0 and 4.
JobPlan TwoServers() { return WithLamb(MakePlan({200, 56}, 1, {0, 4})); }

std::vector<ScalarSet> ScalarsOf(const JobPlan& plan) {
  const auto scalars =
      optim::MakeScalars(plan.spec.optimizer, plan.spec.options, testing::kLambHyperOfTests, 1);
  return {{.group = 0, .step = 1, .bits = ScalarsToBits(scalars)}};
}

class RatiosTest : public ::testing::Test {
 protected:
  RatiosTest() {
    decision_.applied = true;
    decision_.grad_scale = {1.0f};
    decision_.scalars = ScalarsOf(plan_);
    const uint32_t first = plan_.owner[0], second = plan_.owner[1];
    votes_[first].squares = std::vector<RunSquares>{{0, 0, 3.0, 1.0}};
    votes_[second].squares = std::vector<RunSquares>{{1, 0, 1.0, 15.0}, {1, 1, 8.0, 2.0}};
  }
  absl::StatusOr<std::vector<float>> Make() {
    return MakeRatios({plan_, layout_, present_, steps_, decision_, votes_});
  }
  void ExpectMismatch(const std::string& text) {
    const absl::Status status = Make().status();
    EXPECT_EQ(ReasonOf(status), Reason::kVoteMismatch) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  const JobPlan plan_ = TwoServers();
  const Layout layout_ = LayoutOf(plan_);
  std::vector<bool> present_ = {true, true};
  std::vector<uint64_t> steps_ = {0, 0};
  Decision decision_;
  std::map<uint32_t, Vote> votes_;
};

TEST_F(RatiosTest, ATensorOnTwoServersHasOneRatio) {
  const auto ratios = Make();
  ASSERT_TRUE(ratios.ok()) << ratios.status();
  EXPECT_THAT(*ratios, ElementsAre(0.5f, 2.0f));
}

TEST_F(RatiosTest, ThereAreNoneUntilEveryServerHasMeasured) {
  votes_[plan_.owner[1]].squares.reset();
  EXPECT_TRUE(Make()->empty());
  votes_.erase(plan_.owner[1]);
  EXPECT_TRUE(Make()->empty());
}

TEST_F(RatiosTest, ATensorWithoutGradientTakesNoPart) {
  present_[0] = false;
  votes_[plan_.owner[0]].squares->clear();
  votes_[plan_.owner[1]].squares->erase(votes_[plan_.owner[1]].squares->begin());
  EXPECT_THAT(*Make(), ElementsAre(1.0f, 2.0f));
}

TEST_F(RatiosTest, SquaresOfOtherRunsAreRefusedByName) {
  auto& squares = *votes_[plan_.owner[1]].squares;
  squares[1].tensor = 7;
  ExpectMismatch("has the squares of tensor 7 in extent 1 where those of tensor 1 in extent 1");
  squares.pop_back();
  ExpectMismatch("lacks the squares of tensor 1 in extent 1");
  squares = {{1, 0, 1.0, 1.0}, {1, 1, 1.0, 1.0}, {1, 2, 1.0, 1.0}};
  ExpectMismatch("has 1 squares too many");
}

TEST_F(RatiosTest, ADecisionWithoutTheScalarsIsRefused) {
  decision_.scalars.clear();
  ExpectMismatch("lacks the scalars of tensor 0");
}

TEST_F(RatiosTest, OnlyAnAppliedStepTakesTwoPasses) {
  const Optimizer lamb = OptimizerOf(plan_.spec);
  EXPECT_TRUE(TakesTwoPasses(lamb, decision_));
  EXPECT_FALSE(TakesTwoPasses(Optimizer(), decision_));
  decision_.upload = UploadPlane::kWeights;
  EXPECT_FALSE(TakesTwoPasses(lamb, decision_));
  decision_.upload = UploadPlane::kNone;
  decision_.applied = false;
  EXPECT_FALSE(TakesTwoPasses(lamb, decision_));
}

// The lead server of TwoServers, prepared, with its vote given.
class LambFsm : public FsmFixture {
 public:
  LambFsm() : FsmFixture(Durable(TwoServers())) {
    Init();
    Feed(BeginInput{0, BeginOf(plan_, 1)});
    Push(0);
    voted_ = Feed(DurableInput{});
  }
  // The other server's vote; with squares it has measured.
  VoteInput Theirs(bool measured) {
    Vote vote;
    vote.server = 4;
    const uint32_t extent = plan_.owner[0] == 4 ? 0 : 1;
    vote.norms = {{extent, 1.0}};
    vote.contributor_digest = First<SendVote>(voted_)->vote.contributor_digest;
    if (measured) vote.squares = Squares(extent);
    return {1, 1, vote};
  }
  static std::vector<RunSquares> Squares(uint32_t extent) {
    if (extent == 0) return {{0, 0, 3.0, 1.0}};
    return {{1, 0, 1.0, 15.0}, {1, 1, 8.0, 2.0}};
  }
  Effects Measure() { return Feed(MeasuredInput{Squares(plan_.owner[0] == 0 ? 0 : 1)}); }

  Effects voted_;
};

TEST(LambFsmTest, MeasuresVotesAgainLogsTheRatiosAndThenApplies) {
  LambFsm server;
  EXPECT_FALSE(First<SendVote>(server.voted_)->vote.squares.has_value());
  Effects effects = server.Feed(server.Theirs(false));
  ASSERT_NE(First<MeasureRound>(effects), nullptr);
  EXPECT_EQ(Count<ApplyRound>(effects), 0u);
  EXPECT_EQ(server.fsm_.phase(), Phase::kPrepared);

  effects = server.Measure();
  ASSERT_NE(First<SendVote>(effects), nullptr);
  EXPECT_TRUE(First<SendVote>(effects)->vote.squares.has_value());
  EXPECT_EQ(Count<LogRatios>(effects), 0u);
  JobStatus status;
  server.fsm_.FillStatus(&status);
  EXPECT_THAT(status.votes_missing, ElementsAre(4u));

  effects = server.Feed(server.Theirs(true));
  ASSERT_EQ(Count<LogRatios>(effects), 1u);
  EXPECT_EQ(Count<ApplyRound>(effects), 0u);
  EXPECT_THAT(First<LogRatios>(effects)->record.ratios, ElementsAre(0.5f, 2.0f));
  EXPECT_EQ(First<LogRatios>(effects)->record.squares,
            LambFsm::Squares(server.plan_.owner[0] == 0 ? 0 : 1));
  EXPECT_TRUE(server.Feed(server.Theirs(true)).empty());  // Again.

  effects = server.Feed(DurableInput{});
  ASSERT_NE(First<ApplyRound>(effects), nullptr);
  EXPECT_THAT(First<ApplyRound>(effects)->ratios, ElementsAre(0.5f, 2.0f));
  EXPECT_EQ(server.fsm_.phase(), Phase::kApplying);
  EXPECT_TRUE((*server.fsm_.AnswerVote(1, 4))->squares.has_value());
  server.Feed(SteppedInput{});
  EXPECT_EQ(server.fsm_.round(), 2u);
  EXPECT_TRUE((*server.fsm_.AnswerVote(1, 4))->squares.has_value());
}

TEST(LambFsmTest, ASecondVoteMayComeBeforeTheFirstOrBeforeItsOwn) {
  LambFsm server;
  Effects effects = server.Feed(server.Theirs(true));
  EXPECT_EQ(Count<MeasureRound>(effects), 1u);
  EXPECT_EQ(Count<LogRatios>(server.Measure()), 1u);
}

TEST(LambFsmTest, SquaresThatDoNotFitFailTheJobAndNothingIsApplied) {
  LambFsm server;
  server.Feed(server.Theirs(false));
  server.Measure();
  VoteInput theirs = server.Theirs(true);
  theirs.vote.squares->front().tensor = 9;
  const Effects effects = server.Feed(theirs);
  ASSERT_NE(First<FailJob>(effects), nullptr);
  EXPECT_EQ(ReasonOf(First<FailJob>(effects)->status), Reason::kVoteMismatch);
  EXPECT_EQ(Count<LogRatios>(effects), 0u);
}

// The log of a server that was killed: its vote, with its ratios or without.
Restored After(const LambFsm& server, bool ratios) {
  Restored restored;
  restored.tensor_step = {0, 0};
  restored.prepared = PreparedRecord{.epoch = 1, .round = 1};
  restored.prepared->vote = First<SendVote>(server.voted_)->vote;
  restored.prepared->present = {true, true};
  restored.prepared->tensor_step = {0, 0};
  if (!ratios) return restored;
  restored.ratios = {0.5f, 2.0f};
  restored.prepared->vote.squares = LambFsm::Squares(server.plan_.owner[0] == 0 ? 0 : 1);
  return restored;
}

TEST(LambFsmTest, WithoutRatiosInTheLogARestartedServerMeasuresAgain) {
  LambFsm before;
  FsmFixture again(before.plan_);
  Effects effects;
  again.fsm_.Restore(After(before, false), &effects);
  EXPECT_FALSE(First<SendVote>(effects)->vote.squares.has_value());
  effects = again.Feed(before.Theirs(true));
  EXPECT_EQ(Count<MeasureRound>(effects), 1u);
}

TEST(LambFsmTest, WithRatiosInTheLogItStepsByThemAndTellsItsSquares) {
  LambFsm before;
  FsmFixture again(before.plan_);
  Effects effects;
  again.fsm_.Restore(After(before, true), &effects);
  EXPECT_TRUE(First<SendVote>(effects)->vote.squares.has_value());
  effects = again.Feed(before.Theirs(false));
  EXPECT_EQ(Count<MeasureRound>(effects), 0u);
  ASSERT_NE(First<ApplyRound>(effects), nullptr);
  EXPECT_THAT(First<ApplyRound>(effects)->ratios, ElementsAre(0.5f, 2.0f));
}

TEST(LambFsmTest, OneServerNeedsNoSecondVoteOfOthers) {
  FsmFixture server(WithLamb(MakePlan({200, 56}, 1, {0})));
  server.Init();
  server.Feed(BeginInput{0, BeginOf(server.plan_, 1)});
  server.Push(0);
  EXPECT_EQ(Count<MeasureRound>(server.Feed(DurableInput{})), 1u);
  const Effects effects =
      server.Feed(MeasuredInput{{{0, 0, 3.0, 1.0}, {1, 0, 1.0, 15.0}, {1, 1, 8.0, 2.0}}});
  EXPECT_EQ(Count<LogRatios>(effects), 1u);
  EXPECT_EQ(Count<ApplyRound>(server.Feed(DurableInput{})), 1u);
}

}  // namespace
}  // namespace ballast::server
