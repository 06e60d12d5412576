// A job's reason to wait, and the time after which that is too long.
#include "server/status/status_problems.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

void AddSlots(v1::JobStatus* job, std::initializer_list<const char*> states) {
  for (const char* state : states) {
    v1::SlotStatus* slot = job->add_slots();
    slot->set_slot(static_cast<uint32_t>(job->slots_size() - 1));
    slot->set_state(state);
  }
}

// A server with a job whose last rounds ended so many seconds ago, the newest last.
v1::StatusReply Server(const char* phase, std::initializer_list<uint64_t> ages_s) {
  v1::StatusReply server;
  server.set_id(7);
  server.set_serving(true);
  v1::JobStatus* job = server.add_jobs();
  job->set_name("gpt");
  job->set_state("running");
  job->set_phase(phase);
  job->set_round(9);
  for (const uint64_t age_s : ages_s) job->add_rounds()->set_age_ns(age_s * 1'000'000'000);
  return server;
}

TEST(StatusProblems, AJobWaitsForTrainersForVotesOrForItsServer) {
  v1::StatusReply server = Server("collect", {});
  v1::JobStatus* job = server.mutable_jobs(0);
  AddSlots(job, {"done", "pushing", "left", "attached"});
  EXPECT_EQ(WaitsFor(server, *job), "trainers 1, 3");
  job->mutable_slots(3)->set_state("done");
  EXPECT_EQ(WaitsFor(server, *job), "trainer 1");
  job->set_phase("prepared");
  job->add_votes_missing(1);
  EXPECT_EQ(WaitsFor(server, *job), "server 1");
  job->clear_votes_missing();
  EXPECT_EQ(WaitsFor(server, *job), "server 7");
  job->set_phase("idle");
  EXPECT_EQ(WaitsFor(server, *job), "");
  job->set_state("attaching");
  job->mutable_slots(0)->set_state("absent");
  EXPECT_EQ(WaitsFor(server, *job), "trainer 0");
}

TEST(StatusProblems, ARoundStallsWhenItsLikesTookAThirdOfItsTime) {
  // Rounds of 20 s, as one with much accumulation has them.
  EXPECT_THAT(StallsOf(Server("preparing", {99, 79, 59})), IsEmpty());
  EXPECT_THAT(StallsOf(Server("preparing", {101, 81, 61})),
              ElementsAre("job gpt waits for server 7 in round 9, 61 s after its last round"));
  EXPECT_THAT(StallsOf(Server("idle", {101, 81, 61})), IsEmpty());
  // Rounds of a second, on a machine that has other things to do for ten.
  EXPECT_THAT(StallsOf(Server("preparing", {11, 10})), IsEmpty());
  EXPECT_EQ(StallsOf(Server("preparing", {12, 11})).size(), 1u);
  // One round says nothing about the next.
  EXPECT_THAT(StallsOf(Server("preparing", {59})), IsEmpty());
  EXPECT_EQ(StallsOf(Server("preparing", {61})).size(), 1u);
}

TEST(StatusProblems, AJobThatWaitsForWhatIsGoneStallsAtOnce) {
  v1::StatusReply server = Server("collect", {2, 1});
  AddSlots(server.mutable_jobs(0), {"done", "pushing"});
  EXPECT_THAT(StallsOf(server), IsEmpty());
  server.mutable_jobs(0)->mutable_slots(1)->set_state("absent");
  EXPECT_THAT(StallsOf(server),
              ElementsAre("job gpt waits for trainer 1 in round 9, 1 s after its last round"));
  server.mutable_jobs(0)->add_votes_missing(1);
  server.add_peers()->set_id(1);
  server.mutable_peers(0)->set_reachable(true);
  EXPECT_THAT(StallsOf(server), IsEmpty());
  server.mutable_peers(0)->set_reachable(false);
  EXPECT_THAT(StallsOf(server),
              ElementsAre("job gpt waits for server 1 in round 9, 1 s after its last round"));
}

TEST(StatusProblems, TheVerdictCountsWhatIsWellAndNamesWhatIsNot) {
  v1::StatusReply server = Server("idle", {});
  EXPECT_EQ(VerdictOf(server).text, "All is well: it serves, 1 job runs");
  for (const uint32_t id : {1u, 2u}) {
    server.add_peers()->set_id(id);
    server.mutable_peers(static_cast<int>(id) - 1)->set_reachable(true);
  }
  EXPECT_TRUE(VerdictOf(server).well);
  EXPECT_EQ(VerdictOf(server).text, "All is well: it serves, 1 job runs, and it reaches its peers");
  server.mutable_peers(1)->set_reachable(false);
  EXPECT_FALSE(VerdictOf(server).well);
  EXPECT_EQ(VerdictOf(server).text, "Not well: it does not reach server 2");
}

}  // namespace
}  // namespace ballast::server
