// Which slots contribute, by the job's rule, and in which rounds slots compare their gradients.
#include "common/job/contributors.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

using enum Gradients;

TEST(ContributorsTest, AllSlotsContributeTheirOwnAndTheLowestEqualGradients) {
  const std::vector<ContributorSet> all = ContributorsBy(kLocal, {1, 4, 9}, 2);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1], (ContributorSet{{1, 4, 9}, 3}));
  const std::vector<ContributorSet> one = ContributorsBy(kReduced, {1, 4, 9}, 2);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0], (ContributorSet{{1}, 1}));
  EXPECT_EQ(one[1], one[0]);
  EXPECT_EQ(ContributorsBy(kReduced, {7}, 1), ContributorsBy(kLocal, {7}, 1));
  EXPECT_TRUE(Contributes(all[0], 5, 4));
  EXPECT_FALSE(Contributes(one[0], 5, 4));
  EXPECT_EQ(MostContributors(all), 3u);
  EXPECT_EQ(MostContributors({one[0], all[0]}), 3u);
  EXPECT_EQ(MostContributors({}), 0u);
}

TEST(ContributorsTest, ScatteredExtentsAreDealtInTurnAndTheSumIsDividedByTheWorld) {
  const std::vector<ContributorSet> dealt = ContributorsBy(kScattered, {1, 4, 9}, 2);
  ASSERT_EQ(dealt.size(), 2u);
  EXPECT_EQ(dealt[0], (ContributorSet{{1, 4, 9}, 3, ContributorRule::kByPosition}));
  EXPECT_EQ(MostContributors(dealt), 1u);
  const std::vector<uint32_t> slots = {1, 4, 9, 1, 4};
  for (uint32_t turn = 0; turn < slots.size(); ++turn) {
    EXPECT_EQ(ContributorsAt(dealt[1], turn), (std::vector<uint32_t>{slots[turn]}));
    for (const uint32_t slot : dealt[1].slots) {
      EXPECT_EQ(Contributes(dealt[1], turn, slot), slot == slots[turn]);
    }
  }
  EXPECT_EQ(ContributorCount(kScattered, 5), 1u);
}

TEST(ContributorsTest, AWorldOfReducedGradientsHasOneContributor) {
  EXPECT_EQ(ContributorCount(kLocal, 5), 5u);
  EXPECT_EQ(ContributorCount(kReduced, 5), 1u);
  EXPECT_EQ(ContributorCount(kReduced, 0), 0u);
}

TEST(ContributorsTest, GradientsAreComparedInTheFirstRoundsOfAnEpochAndNowAndThen) {
  EXPECT_TRUE(GradientDigestsDue(kReduced, 1, 1));
  EXPECT_TRUE(GradientDigestsDue(kReduced, 10, 1));
  EXPECT_FALSE(GradientDigestsDue(kReduced, 11, 1));
  EXPECT_TRUE(GradientDigestsDue(kReduced, 100, 1));
  EXPECT_FALSE(GradientDigestsDue(kReduced, 101, 1));
  EXPECT_TRUE(GradientDigestsDue(kReduced, 151, 150)) << "a new epoch";
  EXPECT_FALSE(GradientDigestsDue(kLocal, 1, 1));
}

}  // namespace
}  // namespace ballast
