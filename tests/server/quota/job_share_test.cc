// Who may begin one more of the jobs that a server holds: no tenant shuts another out.
#include "server/quota/job_share.h"

#include "gtest/gtest.h"

namespace ballast::server {
namespace {

TEST(JobShareTest, ATenantGetsHalfAndAnotherTheRest) {
  EXPECT_EQ(RoomForJob({{"a", 3}}, "a", 8, true), JobRoom::kFree);
  EXPECT_EQ(RoomForJob({{"a", 4}}, "a", 8, true), JobRoom::kShareFull);
  EXPECT_EQ(RoomForJob({{"a", 4}, {"b", 3}}, "b", 8, true), JobRoom::kFree);
}

TEST(JobShareTest, WithANumberOfJobsOrWithoutTenantsOneMayHaveAll) {
  EXPECT_EQ(RoomForJob({{"a", 7}}, "a", 8, false), JobRoom::kFree);
  EXPECT_EQ(RoomForJob({{"a", 8}}, "a", 8, false), JobRoom::kFull);
}

TEST(JobShareTest, ManyTenantsTogetherMayHaveAllAndNotOneMore) {
  EXPECT_EQ(RoomForJob({{"a", 3}, {"b", 3}, {"c", 1}}, "d", 8, true), JobRoom::kFree);
  EXPECT_EQ(RoomForJob({{"a", 3}, {"b", 3}, {"c", 2}}, "d", 8, true), JobRoom::kFull);
}

TEST(JobShareTest, WhereThereIsOnePlaceItIsATenants) {
  EXPECT_EQ(HalfOfJobs(1), 1u);
  EXPECT_EQ(RoomForJob({}, "a", 1, true), JobRoom::kFree);
}

TEST(JobShareTest, TheOperatorReadsWhoHasMostFirst) {
  EXPECT_EQ(CountsText({{"a", 1}, {"b", 31}, {"c", 1}}), "b 31, a 1, c 1");
}

}  // namespace
}  // namespace ballast::server
