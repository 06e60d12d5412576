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

TEST(DecideTest, NonFiniteElementsSkipAndKeepTheStepCount) {
  DecideInput input = Input(0, 1, 1);
  input.policy.opt_step = 7;
  const auto decision = Decide(input, {{.server = 0, .norms = {{0, 1.0}}, .nonfinite = 3}});
  EXPECT_FALSE(decision->applied);
  EXPECT_EQ(decision->policy.opt_step, 7u);
  EXPECT_EQ(decision->policy.consecutive_skips, 1u);
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
