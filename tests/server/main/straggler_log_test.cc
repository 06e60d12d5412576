// When a line names the trainers a round waits for, and the words of the line.
#include "server/straggler_log.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

JobStatus Job(uint64_t round, const std::string& phase) {
  JobStatus job;
  job.name = "gpt";
  job.job = 1;
  job.state = "running";
  job.round = round;
  job.phase = phase;
  job.slots = {{0, "done", 0, 0}, {1, "pushing", 7, 42}, {2, "attached", 0, 0}};
  return job;
}

TEST(StragglerLogTest, AnOpenRoundNamesTheMissingFrames) {
  StragglerLog log;
  EXPECT_TRUE(log.Lines({Job(5, "collect")}).empty());
  const auto lines = log.Lines({Job(5, "collect")});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], testing::HasSubstr("slot 1 owes 7 extents, first extent 42"));
  EXPECT_THAT(lines[0], testing::HasSubstr("slot 2 has not begun"));
  EXPECT_THAT(lines[0], testing::Not(testing::HasSubstr("slot 0")));
}

TEST(StragglerLogTest, MissingVotesAreNamed) {
  StragglerLog log;
  JobStatus job = Job(5, "prepared");
  job.slots.clear();
  job.votes_missing = {3};
  log.Lines({job});
  EXPECT_THAT(log.Lines({job}), testing::ElementsAre(testing::HasSubstr("server 3 owes its vote")));
}

TEST(StragglerLogTest, ProgressAndIdleJobsAreNotWorthALine) {
  StragglerLog log;
  log.Lines({Job(5, "collect")});
  EXPECT_TRUE(log.Lines({Job(6, "collect")}).empty());
  EXPECT_TRUE(log.Lines({Job(6, "idle")}).empty());
  EXPECT_TRUE(log.Lines({Job(6, "collect")}).empty());
}

}  // namespace
}  // namespace ballast::server
