// What several servers say, put together.
#include "tools/commands/cluster_view.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/status/status_problems.h"

namespace ballast::tools {
namespace {

using server::ProblemsOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

v1::SlotStatus* AddSlot(v1::StatusReply* server, uint32_t slot, const char* state, uint64_t owed) {
  if (server->jobs().empty()) {
    server->add_jobs()->set_name("gpt");
    server->mutable_jobs(0)->set_state("running");
  }
  v1::SlotStatus* added = server->mutable_jobs(0)->add_slots();
  added->set_slot(slot);
  added->set_state(state);
  added->set_owed_extents(owed);
  return added;
}

ClusterView View() {
  ClusterView view;
  view.servers.resize(2);
  view.servers[0].set_serving(true);
  view.servers[1].set_serving(true);
  view.servers[1].set_id(1);
  AddSlot(&view.servers[0], 0, "done", 0);
  AddSlot(&view.servers[0], 1, "pushing", 3);
  AddSlot(&view.servers[1], 0, "pushing", 2);
  AddSlot(&view.servers[1], 1, "done", 0);
  return view;
}

TEST(ClusterView, ATrainerIsInTheWorstOfItsStates) {
  const std::vector<TrainerView> trainers = TrainersOf(View(), "gpt");
  ASSERT_EQ(trainers.size(), 2u);
  EXPECT_EQ(trainers[0].state, "pushing");
  EXPECT_EQ(trainers[0].owed_extents, 2u);
  EXPECT_THAT(trainers[0].owed_to, ElementsAre(1u));
  EXPECT_EQ(trainers[1].state, "pushing");
  EXPECT_THAT(trainers[1].owed_to, ElementsAre(0u));
  EXPECT_TRUE(TrainersOf(View(), "other").empty());
}

TEST(ClusterView, AServerThatServesHasNoProblem) {
  EXPECT_TRUE(ProblemsOf(View().servers[0]).empty());
}

TEST(ClusterView, EachProblemIsNamed) {
  v1::StatusReply server = View().servers[0];
  server.set_serving(false);
  server.set_instead("replaying");
  server.add_file_faults("tokens:1:1: no digest");
  server.add_peers()->set_id(7);
  AddSlot(&server, 2, "lost", 0);
  v1::JobStatus* failed = server.add_jobs();
  failed->set_name("old");
  failed->set_state("failed");
  failed->set_error("no disk");
  for (const char* state : {"damaged", "unopened"}) {
    v1::JobStatus* damaged = server.add_jobs();
    damaged->set_name("bert");
    damaged->set_state(state);
    damaged->set_error("no file");
  }
  EXPECT_THAT(
      ProblemsOf(server),
      ElementsAre(HasSubstr("not serve jobs: replaying"),
                  HasSubstr("older content is: tokens:1:1: no digest"), HasSubstr("server 7"),
                  HasSubstr("trainer 2 of job gpt is lost"), HasSubstr("old failed: no disk"),
                  "job bert is damaged: no file", "job bert is unopened: no file"));
}

void AddDisk(v1::StatusReply* server, bool answers, uint64_t free_bytes, uint64_t size_bytes) {
  v1::DiskStatus* disk = server->add_disks();
  disk->set_directory("data");
  disk->set_answers(answers);
  disk->set_free_bytes(free_bytes);
  disk->set_size_bytes(size_bytes);
}

TEST(ClusterView, ADiskThatIsFullOrSilentIsAProblem) {
  constexpr uint64_t kMiB = 1 << 20;
  v1::StatusReply server = View().servers[0];
  AddDisk(&server, true, 0, 0);  // It was not asked yet.
  AddDisk(&server, true, 8 * kMiB, 24 * kMiB);
  AddDisk(&server, true, 10 * kMiB, 1000 * kMiB);
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  AddDisk(&server, true, 8 * kMiB - 1, 24 * kMiB);
  AddDisk(&server, true, 10 * kMiB - 1, 1000 * kMiB);
  AddDisk(&server, false, 8 * kMiB, 24 * kMiB);
  EXPECT_THAT(ProblemsOf(server),
              ElementsAre("its data disk is full: 8.0 MiB of 24.0 MiB are free",
                          "its data disk is full: 10.0 MiB of 1000.0 MiB are free",
                          "its data disk does not answer"));
}

TEST(ClusterView, ADiskThatEndsNoCallForTenSecondsIsAProblem) {
  v1::StatusReply server = View().servers[0];
  AddDisk(&server, true, 8 << 20, 24 << 20);
  server.mutable_disks(0)->set_waits_ns(9'999'999'999);
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  server.mutable_disks(0)->set_waits_ns(10'000'000'000);
  EXPECT_THAT(ProblemsOf(server),
              ElementsAre("its data disk hangs: a write or flush has not ended for 10.0 s"));
}

TEST(ClusterView, JobsThatNeedMoreThanTheBudgetAreAProblem) {
  v1::StatusReply server = View().servers[0];
  server.set_memory_used_bytes(3 << 20);
  server.set_memory_budget_bytes(3 << 20);
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  server.set_memory_used_bytes(4 << 20);
  EXPECT_THAT(ProblemsOf(server),
              ElementsAre("its jobs need 4.0 MiB, over its memory budget of 3.0 MiB"));
}

TEST(ClusterView, MemoryThatNothingExplainsIsAProblem) {
  v1::StatusReply server = View().servers[0];
  server.set_resident_bytes(3 << 20);  // An earlier server explains nothing.
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  server.set_explained_bytes(3 << 20);
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  server.set_resident_bytes(4 << 20);
  EXPECT_THAT(ProblemsOf(server),
              ElementsAre("it has 4.0 MiB of memory, and its jobs and limits explain 3.0 MiB: "
                          "connections took the rest"));
}

TEST(ClusterView, JobsUpToNineTenthsOfTheLimitAreNoProblem) {
  v1::StatusReply server = View().servers[0];
  server.set_jobs_under_way(1);  // An earlier server names no limit.
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  server.set_jobs_max(64);
  server.set_jobs_under_way(57);
  EXPECT_THAT(ProblemsOf(server), IsEmpty());
  server.set_jobs_under_way(58);
  EXPECT_THAT(ProblemsOf(server), ElementsAre("58 jobs are under way, and limits.max_jobs is 64"));
}

TEST(ClusterView, ThePaceIsThatOfTheRoundsBetweenTheFirstAndTheLastEnd) {
  v1::JobStatus job;
  EXPECT_EQ(PaceOf(job).rounds_per_s, 0);
  for (const uint64_t age_s : {5u, 3u, 1u}) {
    v1::FinishedRound* round = job.add_rounds();
    round->set_age_ns(age_s * 1'000'000'000);
    round->set_collect_ns(100'000'000 * age_s);
    round->set_pushed_bytes(1000);
  }
  const Pace pace = PaceOf(job);
  EXPECT_EQ(pace.rounds, 3u);
  EXPECT_DOUBLE_EQ(pace.rounds_per_s, 0.5);
  EXPECT_DOUBLE_EQ(pace.collect_s, 0.3);
  EXPECT_DOUBLE_EQ(pace.pushed_bytes_per_s, 500);
}

TEST(ClusterView, ThePaceFallsWhileNoRoundEnds) {
  v1::JobStatus job;
  for (const uint64_t age_s : {14u, 12u, 10u}) {
    v1::FinishedRound* round = job.add_rounds();
    round->set_age_ns(age_s * 1'000'000'000);
    round->set_pushed_bytes(7000);
  }
  EXPECT_DOUBLE_EQ(PaceOf(job).rounds_per_s, 2.0 / 14);
  EXPECT_DOUBLE_EQ(PaceOf(job).pushed_bytes_per_s, 1000);
}

}  // namespace
}  // namespace ballast::tools
