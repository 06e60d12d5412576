// Clusters that get servers, or lose them, while jobs rest or run. A job keeps the servers it was
// made with; trainers open streams at those that the home names, and at no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/server/directory/durable_trainers.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::DurableDirectories;
using ::testing::HasSubstr;
using testing::State;
using testing::Trainers;

using Servers = std::vector<uint32_t>;

// --- A cluster that grows -----------------------------------------------------------------------

constexpr uint64_t kRoundsAStep = 2;

struct Growth {
  std::vector<Servers> clusters;  // one after the other
  bool rests = false;             // the job rests when servers are added; else it runs
};

State StateAfter(const Growth& growth, uint64_t rounds_a_step) {
  const std::string text = absl::StrCat(growth.clusters.size(), " clusters, rests ", growth.rests);
  DurableDirectories cluster(5, {.members = growth.clusters.front()});
  Trainers job(&cluster, growth.clusters.front().front(), "old");
  State state;
  uint64_t incarnation = 100;
  for (const Servers& servers : growth.clusters) {
    if (servers != growth.clusters.front()) cluster.RestartAs(servers);
    const absl::Status attached = job.Attach(incarnation += 10);
    EXPECT_TRUE(attached.ok()) << text << ": " << attached;
    if (!attached.ok()) return {};
    EXPECT_EQ(job.plan().servers, growth.clusters.front()) << text;
    EXPECT_EQ(job.servers(), job.plan().servers) << text;
    const absl::Status run = job.RunRounds(rounds_a_step);
    EXPECT_TRUE(run.ok()) << text << ": " << run;
    state = job.FetchState();
    Trainers other(&cluster, servers.front(), absl::StrCat("new", incarnation));
    EXPECT_TRUE(other.Attach(900).ok());
    EXPECT_EQ(other.servers(), servers) << "a new job has all servers";
    if (growth.rests) job.Leave();
  }
  return state;
}

TEST(GrownCluster, KeepsEveryBitOfItsJobsWhateverServersWereAddedWhen) {
  const std::vector<Growth> growths = {
      {{{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}}, false},
      {{{0}, {0, 4}, {0, 1, 4}, {0, 1, 2, 3, 4}}, true},
      {{{1, 3}, {1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}}, false},
      {{{0, 1}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}, true}};
  const State expected = StateAfter({{{0}}}, 4 * kRoundsAStep);
  ASSERT_FALSE(expected.empty());
  for (const Growth& growth : growths) {
    const State state = StateAfter(growth, kRoundsAStep);
    EXPECT_TRUE(state == expected) << "growth " << (&growth - growths.data());
  }
}

// Makes a job of a snapshot, on all three servers, which has that state.
void ExpectRestored(DurableDirectories* cluster, const RestoreCall& call, const State& state) {
  Answer<absl::StatusOr<RestoredJob>> restored;
  cluster->At(0)->apis().restores->RestoreSnapshot(call, restored.Setter());
  ASSERT_TRUE(restored.Get().ok()) << restored.Get().status();
  EXPECT_EQ(restored.Get()->job.servers, (Servers{0, 1, 2}));
  Trainers again(cluster, 0, call.as);
  ASSERT_TRUE(again.Attach(300).ok());
  EXPECT_TRUE(again.FetchState() == state) << call.as;
}

// Snapshot, restore and export of a job that has fewer servers than its cluster.
TEST(GrownCluster, SnapshotsAndExportsEarlierJobs) {
  DurableDirectories cluster(3, {.snapshots = true, .shared = true, .members = {0, 1}});
  Trainers job(&cluster, 0, "old");
  ASSERT_TRUE(job.Attach(100).ok());
  ASSERT_TRUE(job.RunRounds(3).ok());
  const State state = job.FetchState();
  // Their threads for snapshots may still hold them, and must not be those that end them.
  std::vector<std::shared_ptr<JobDirectory>> before;
  for (const bool rests : {false, true}) {
    if (rests) job.Leave();
    for (const uint32_t id : {0u, 1u, 2u}) before.push_back(cluster.At(id));
    cluster.RestartAs({0, 1, 2});
    const JobApis apis = cluster.At(0)->apis();
    Answer<absl::StatusOr<SnapshotInfo>> taken;
    apis.snapshots->CreateSnapshot({{.name = "old"}, absl::StrCat("s", rests)}, taken.Setter());
    ASSERT_TRUE(taken.Get().ok()) << taken.Get().status();
    const SnapshotInfo info = *taken.Get();
    EXPECT_EQ(info.servers, (Servers{0, 1}));
    const std::string as = absl::StrCat("restored", rests);
    ExpectRestored(&cluster, {.job = "old", .snapshot = info.name, .as = as}, state);
    Answer<absl::StatusOr<ExportInfo>> exported;
    apis.exports->Export({.job = "old", .name = absl::StrCat("e", rests), .state = true},
                         exported.Setter());
    EXPECT_TRUE(exported.Get().ok()) << exported.Get().status();
    if (!rests) {
      ASSERT_TRUE(job.Attach(200).ok());
    }
  }
}

TEST(GrownCluster, AnAddedServerThatIsLostRefusesNobodyASeatOfAnOldJob) {
  DurableDirectories cluster(3, {.members = {0, 1}});
  Trainers job(&cluster, 0, "old");
  ASSERT_TRUE(job.Attach(100).ok());
  job.Leave();
  cluster.RestartAs({0, 1, 2});
  cluster.Keep("create", 1);
  testing::AttachAnswer answers[2];
  for (const uint32_t slot : {0u, 1u}) {
    AttachCall call = testing::SeatCall(slot, 200 + slot);
    call.spec.name = "old";
    cluster.At(0)->apis().trainers->Attach(call, answers[slot].Setter());
  }
  cluster.WaitForKept(1);
  cluster.At(0)->PeerLost(2, "it is gone");
  Answer<std::vector<JobStatus>> settled;
  cluster.At(0)->apis().jobs->Status(settled.Setter());
  settled.Get();
  cluster.KeepNoMore();
  cluster.Release();
  for (auto& answer : answers) EXPECT_TRUE(answer.Get().ok()) << answer.Get().status();
}

// --- Servers that were taken away ---------------------------------------------------------------

void ExpectUnopened(DurableDirectories* cluster, const Servers& servers, Reason reason,
                    const std::string& words) {
  for (const uint32_t id : servers) {
    EXPECT_EQ(cluster->Metrics(id)->damaged_jobs()->value(), 1) << "server " << id;
    Answer<std::vector<JobStatus>> jobs;
    cluster->At(id)->apis().jobs->Status(jobs.Setter());
    ASSERT_EQ(jobs.Get().size(), 1u) << "server " << id;
    EXPECT_EQ(jobs.Get()[0].state, "unopened");
    EXPECT_THAT(jobs.Get()[0].error, HasSubstr(words));
  }
  const absl::Status refused = Trainers(cluster, servers.front(), "old").Attach(500);
  EXPECT_EQ(ReasonOf(refused), reason) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(words));
}

TEST(GrownCluster, AServerThatWasTakenAwayIsNamedAndPutBackTheJobContinues) {
  for (const Servers& left : {Servers{0, 1}, Servers{0, 2}, Servers{1, 2}}) {
    for (const bool rests : {false, true}) {
      DurableDirectories cluster(3);
      Trainers job(&cluster, 0, "old");
      ASSERT_TRUE(job.Attach(100).ok());
      ASSERT_TRUE(job.RunRounds(2).ok());
      const State state = job.FetchState();
      if (rests) job.Leave();
      cluster.RestartAs(left);
      const uint32_t gone = 3 - left[0] - left[1];
      const std::string words = absl::StrCat(" lacks ", gone, ": put that back");
      ASSERT_NO_FATAL_FAILURE(ExpectUnopened(&cluster, left, Reason::kServerRemoved, words));
      EXPECT_TRUE(Trainers(&cluster, left.front(), "other").Attach(600).ok());
      cluster.RestartAs({0, 1, 2});
      // Server 0 has no record of the other job where it was away.
      for (const uint32_t id : {0u, 1u, 2u})
        EXPECT_LE(cluster.Metrics(id)->damaged_jobs()->value(), 1);
      const absl::Status back = job.Attach(200);
      ASSERT_TRUE(back.ok()) << absl::StrJoin(left, ",") << " " << back;
      EXPECT_TRUE(job.FetchState() == state);
    }
  }
}

TEST(GrownCluster, AJobThatLacksAServerIsDeletedByForceOnly) {
  DurableDirectories cluster(2);
  Trainers job(&cluster, 0, "old");
  ASSERT_TRUE(job.Attach(100).ok());
  cluster.RestartAs({0});
  for (const bool force : {false, true}) {
    Answer<absl::Status> deleted;
    cluster.At(0)->apis().jobs->DeleteJob({{.name = "old"}, force}, deleted.Setter());
    EXPECT_EQ(ReasonOf(deleted.Get()), force ? Reason::kUnspecified : Reason::kServerRemoved);
    EXPECT_EQ(deleted.Get().ok(), force) << deleted.Get();
  }
  EXPECT_EQ(cluster.Metrics(0)->damaged_jobs()->value(), 0);
  EXPECT_TRUE(cluster.Disk(0)->Paths().empty());
}

// It would be the home, and knows nothing of the job: the name must not begin anew.
TEST(GrownCluster, AnAddedServerWithALowerIdIsNamed) {
  DurableDirectories cluster(3, {.members = {1, 2}});
  Trainers job(&cluster, 1, "old");
  ASSERT_TRUE(job.Attach(100).ok());
  ASSERT_TRUE(job.RunRounds(2).ok());
  cluster.RestartAs({0, 1, 2});
  const absl::Status refused = Trainers(&cluster, 0, "old").Attach(500);
  EXPECT_EQ(ReasonOf(refused), Reason::kUnsupported) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("give the added server an id above 2"));
  cluster.RestartAs({1, 2});
  ASSERT_TRUE(job.Attach(200).ok());
}

// One server was started with the old cluster.peers.
TEST(GrownCluster, AServerThatDoesNotKnowAnotherOneTakesNoJobOfBoth) {
  DurableDirectories cluster(3, {.members = {0, 1}});
  cluster.Stop(0);
  cluster.SetMembers({0, 1, 2});
  cluster.Start(0);
  cluster.Start(2);
  const absl::Status refused = Trainers(&cluster, 0, "new").Attach(100);
  EXPECT_EQ(ReasonOf(refused), Reason::kServerRemoved) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cluster.peers of server 1 lacks 2"));
}

}  // namespace
}  // namespace ballast::server
