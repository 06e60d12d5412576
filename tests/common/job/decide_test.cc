// Decide: same votes, same decision, whatever the number of servers that cast them.
#include "common/job/decide.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/reason.h"

namespace ballast {
namespace {

DecideInput Input(double clip, size_t extents, double world) {
  DecideInput input;
  input.max_grad_norm = clip;
  input.divisor = {world};
  input.extent_group.assign(extents, 0);
  return input;
}

TEST(DecideTest, CombinesNormsInExtentOrderWhateverTheServers) {
  const double a = 1e16, b = 1.0, c = -0.0 + 3.0;
  Vote one{.server = 0, .norms = {{0, a}, {1, b}, {2, c}}};
  Vote left{.server = 0, .norms = {{1, b}}};
  Vote right{.server = 5, .norms = {{0, a}, {2, c}}};
  const auto single = Decide(Input(0, 3, 1), {one});
  const auto split = Decide(Input(0, 3, 1), {right, left});
  ASSERT_TRUE(single.ok() && split.ok());
  EXPECT_EQ(single->grad_norm, split->grad_norm);
  EXPECT_EQ(single->grad_norm, std::sqrt((a + b) + c));
}

TEST(DecideTest, ClipsTheMeanAndFoldsEverythingIntoOneFactor) {
  DecideInput input = Input(0.5, 1, 2);
  input.policy.loss_scale = 4;
  const auto decision = Decide(input, {{.server = 0, .norms = {{0, 64.0}}}});
  ASSERT_TRUE(decision.ok());
  EXPECT_DOUBLE_EQ(decision->grad_norm, 1.0);  // 8 / (2 * 4)
  const double coef = 0.5 / (1.0 + 1e-6);
  EXPECT_EQ(decision->clip_coef, coef);
  EXPECT_EQ(decision->grad_scale[0], static_cast<float>(coef / 8));
  EXPECT_EQ(decision->policy.opt_step, 1u);
}

TEST(DecideTest, SmallNormIsNotScaledUp) {
  const auto decision = Decide(Input(10, 1, 1), {{.server = 0, .norms = {{0, 1.0}}}});
  EXPECT_EQ(decision->clip_coef, 1.0);
  EXPECT_EQ(decision->grad_scale[0], 1.0f);
}

TEST(DecideTest, AnUploadTakesWeightsAsTheyAreAndIsNoStep) {
  DecideInput input = Input(0.5, 1, 2);
  input.upload = UploadPlane::kWeights;
  input.nonfinite = NonfinitePolicy::kHalt;
  input.policy = {.loss_scale = 4, .opt_step = 7, .consecutive_skips = 2};
  Vote vote{.server = 0, .norms = {{0, std::numeric_limits<double>::infinity()}}, .nonfinite = 3};
  vote.first_nonfinite = {.kind = NonfiniteKind::kGradient, .element = 5};
  const auto decision = Decide(input, {vote});
  ASSERT_TRUE(decision.ok());
  EXPECT_TRUE(decision->applied && decision->upload == UploadPlane::kWeights);
  EXPECT_EQ(decision->nonfinite, 0u);
  EXPECT_EQ(decision->first_nonfinite, Nonfinite());
  EXPECT_EQ(decision->clip_coef, 1.0);
  EXPECT_EQ(decision->grad_scale, std::vector<float>{1.0f});
  EXPECT_EQ(decision->policy, input.policy);
}

TEST(DecideTest, AnUploadOfStateMaySetTheStepCount) {
  DecideInput input = Input(0.5, 1, 2);
  input.upload = StatePlaneOf(2);
  input.policy = {.loss_scale = 4, .opt_step = 7, .consecutive_skips = 2};
  const std::vector<Vote> votes = {{.server = 0, .norms = {{0, 1.0}}}};
  EXPECT_EQ(Decide(input, votes)->policy, input.policy);
  input.opt_step = 3;
  PolicyState expected = input.policy;
  expected.opt_step = 3;
  EXPECT_EQ(Decide(input, votes)->policy, expected);
}

TEST(DecideTest, NonFiniteElementsSkipAndKeepTheStepCount) {
  DecideInput input = Input(0, 1, 1);
  input.policy.opt_step = 7;
  const auto decision = Decide(input, {{.server = 0, .norms = {{0, 1.0}}, .nonfinite = 3}});
  EXPECT_FALSE(decision->applied);
  EXPECT_EQ(decision->policy.opt_step, 7u);
  EXPECT_EQ(decision->policy.consecutive_skips, 1u);
}

// The outcome of a round that is not finite, by policy, limit and the skips before it.
TEST(DecideTest, ThePolicyAndTheLimitSayWhetherARoundIsSkippedOrHalted) {
  struct Row {
    NonfinitePolicy policy;
    uint32_t max_skips;
    uint64_t before;
    bool halted;
  };
  constexpr auto kSkip = NonfinitePolicy::kSkip;
  constexpr auto kHalt = NonfinitePolicy::kHalt;
  const Row rows[] = {{kSkip, 2, 0, false}, {kSkip, 2, 1, false}, {kSkip, 2, 2, true},
                      {kSkip, 2, 9, true},  {kSkip, 0, 9, false}, {kHalt, 2, 0, true},
                      {kHalt, 0, 0, true}};
  for (const Row& row : rows) {
    DecideInput input = Input(0, 1, 1);
    input.nonfinite = row.policy;
    input.max_consecutive_skips = row.max_skips;
    input.policy = {.opt_step = 5, .consecutive_skips = row.before};
    const auto bad = Decide(input, {{.server = 0, .norms = {{0, 1.0}}, .nonfinite = 1}});
    EXPECT_FALSE(bad->applied);
    EXPECT_EQ(bad->halted, row.halted) << row.max_skips << " " << row.before;
    EXPECT_EQ(bad->policy.consecutive_skips, row.before + 1);
    EXPECT_EQ(bad->policy.opt_step, 5u);
    const auto good = Decide(input, {{.server = 0, .norms = {{0, 1.0}}}});
    EXPECT_TRUE(good->applied && !good->halted);
    EXPECT_EQ(good->policy.consecutive_skips, 0u);
  }
}

TEST(DecideTest, NamesTheFirstPlaceOfAllServersInAnyOrderOfVotes) {
  const Nonfinite early{NonfiniteKind::kSum, 1, 7, 1, 0};
  const Nonfinite late{NonfiniteKind::kGradient, 2, 3, 0, 0};
  const Vote a{.server = 0, .norms = {{0, 1}, {2, 1}}, .nonfinite = 2, .first_nonfinite = late};
  const Vote b{.server = 3, .norms = {{1, 1}}, .nonfinite = 1, .first_nonfinite = early};
  EXPECT_EQ(Decide(Input(0, 3, 1), {a, b})->first_nonfinite, early);
  EXPECT_EQ(Decide(Input(0, 3, 1), {b, a})->first_nonfinite, early);
}

TEST(DecideTest, OverflowedSumOfSquaresSkips) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(Decide(Input(0, 1, 1), {{.server = 0, .norms = {{0, inf}}}})->applied);
}

TEST(DecideTest, ServersThatSawOtherContributionsAreNamed) {
  Vote a{.server = 0, .norms = {{0, 1}}, .contributor_digest = 1};
  Vote b{.server = 3, .norms = {{1, 1}}, .contributor_digest = 2};
  const auto decision = Decide(Input(0, 2, 1), {a, b});
  EXPECT_EQ(ReasonOf(decision.status()), Reason::kVoteMismatch);
  EXPECT_EQ(FieldsOf(decision.status()).server, 3);
}

TEST(DecideTest, MissingOrDoubledExtentsAreAnInternalError) {
  EXPECT_EQ(Decide(Input(0, 2, 1), {{.server = 0, .norms = {{0, 1}}}}).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(Decide(Input(0, 2, 1), {{.server = 0, .norms = {{0, 1}, {0, 1}}}}).status().code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ballast
