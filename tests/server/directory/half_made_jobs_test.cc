// Durable jobs of which a server, or their home, goes down while they are made or while they end:
// the servers come to agree again, without anybody's help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/directory/durable_cluster.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::AttachAnswer;
using testing::DurableDirectories;
using ::testing::HasSubstr;
using testing::RecordingSink;
using testing::SeatCall;

AttachAnswer Ask(DurableDirectories* cluster, uint32_t slot, uint64_t incarnation,
                 const std::string& job = "job") {
  AttachAnswer answer;
  AttachCall call = SeatCall(slot, incarnation);
  call.spec.name = job;
  cluster->At(0)->apis().trainers->Attach(call, answer.Setter());
  return answer;
}

// Asks as the client does: again when it is told that the job is on its way.
absl::StatusOr<AttachResult> AskUntilAnswered(DurableDirectories* cluster, uint32_t slot,
                                              uint64_t incarnation) {
  while (true) {
    const auto answer = Ask(cluster, slot, incarnation).Get();
    if (ReasonOf(answer.status()) != Reason::kRecovering) return answer;
  }
}

uint64_t MakeJob(DurableDirectories* cluster) {
  AttachAnswer zero = Ask(cluster, 0, 100), one = Ask(cluster, 1, 101);
  EXPECT_TRUE(zero.Get().ok() && one.Get().ok());
  return zero.Get()->plan.job;
}

// Everything the directory was given before has been taken in.
void Settle(DurableDirectories* cluster, uint32_t id) {
  Answer<std::vector<JobStatus>> jobs;
  cluster->At(id)->apis().jobs->Status(jobs.Setter());
  jobs.Get();
}

// The process opens its stream.
void OpenStream(RoundEngine* engine, uint32_t slot, uint64_t incarnation, uint32_t epoch = 1) {
  Answer<absl::StatusOr<SlotWelcome>> welcome;
  engine->trainers().AttachSlot({.slot = slot, .incarnation = incarnation, .epoch = epoch},
                                std::make_shared<RecordingSink>(8), welcome.Setter());
  ASSERT_TRUE(welcome.Get().ok()) << welcome.Get().status();
}

void ExpectFinished(RoundEngine* engine) {
  Answer<JobStatus> ended;
  engine->Status(ended.Setter());
  ASSERT_EQ(ended.Get().state, "finished");
}

// Both first processes leave server `id`, and the job rests there.
void FinishAt(DurableDirectories* cluster, uint32_t id, uint64_t job) {
  const std::shared_ptr<RoundEngine> engine = cluster->Engine(id, job);
  for (const uint32_t slot : {0u, 1u}) {
    ASSERT_NO_FATAL_FAILURE(OpenStream(engine.get(), slot, 100 + slot));
    engine->trainers().Leave(slot, 100 + slot);
  }
  while (!cluster->Record(id, job).resting) Settle(cluster, id);
}

TEST(HalfMadeJobs, AHomeThatGoesDownBeforeItsPeerHeardOfTheJobMakesItThereLater) {
  DurableDirectories cluster(2);
  cluster.Keep("create", 1);
  AttachAnswer lost_zero = Ask(&cluster, 0, 100), lost_one = Ask(&cluster, 1, 101);
  cluster.WaitForKept(1);
  cluster.Stop(0);
  cluster.KeepNoMore();
  cluster.Start(0);
  // The processes that were waiting call again; one has been started anew meanwhile.
  AttachAnswer zero = Ask(&cluster, 0, 100), one = Ask(&cluster, 1, 201);
  ASSERT_TRUE(one.Get().ok()) << one.Get().status();
  ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
  EXPECT_EQ(zero.Get()->plan.job, one.Get()->plan.job);
  EXPECT_EQ(cluster.Record(1, zero.Get()->plan.job).epoch.epoch, 2u);
}

TEST(HalfMadeJobs, AHomeThatGoesDownBeforeTheJobsEndIsOnItsDiskWakesThePeerThatRests) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  const std::shared_ptr<RoundEngine> engine = cluster.Engine(1, job);
  for (const uint32_t slot : {0u, 1u}) {
    ASSERT_NO_FATAL_FAILURE(OpenStream(engine.get(), slot, 100 + slot));
    engine->trainers().Leave(slot, 100 + slot);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(engine.get()));
  Settle(&cluster, 1);
  ASSERT_TRUE(cluster.Record(1, job).resting);
  cluster.Restart(1);
  cluster.Restart(0);
  AttachAnswer zero = Ask(&cluster, 0, 200), one = Ask(&cluster, 1, 201);
  ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
  ASSERT_TRUE(one.Get().ok()) << one.Get().status();
  EXPECT_FALSE(cluster.Record(1, job).resting);
}

TEST(HalfMadeJobs, AProcessThatWaitsForASeatOfAJobThatEndsIsAskedToCallAgain) {
  DurableDirectories cluster(1);
  const uint64_t job = MakeJob(&cluster);
  const std::shared_ptr<RoundEngine> engine = cluster.Engine(0, job);
  for (const uint32_t slot : {0u, 1u}) {
    ASSERT_NO_FATAL_FAILURE(OpenStream(engine.get(), slot, 100 + slot));
  }
  AttachAnswer next = Ask(&cluster, 0, 200);
  // The seat that is waited for is the last one: free any earlier, it would be given away.
  for (const uint32_t slot : {1u, 0u}) engine->trainers().Leave(slot, 100 + slot);
  EXPECT_EQ(next.Get().status().code(), absl::StatusCode::kUnavailable) << next.Get().status();
  for (const uint32_t slot : {0u, 1u}) {
    const auto answer = AskUntilAnswered(&cluster, slot, 200 + slot);
    ASSERT_TRUE(answer.ok()) << answer.status();
  }
}

// The process of slot 0 was killed after its Leave and before its end, and is started again.
TEST(HalfMadeJobs, AJobThatOneProcessLooksIntoAfterItsEndRestsAgain) {
  DurableDirectories cluster(1);
  const uint64_t job = MakeJob(&cluster);
  FinishAt(&cluster, 0, job);
  const auto again = AskUntilAnswered(&cluster, 0, 200);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_FALSE(cluster.Record(0, job).resting);
  const std::shared_ptr<RoundEngine> engine = cluster.Engine(0, job);
  ASSERT_NO_FATAL_FAILURE(OpenStream(engine.get(), 0, 200, again->plan.epoch.epoch));
  engine->trainers().Leave(0, 200);
  ASSERT_NO_FATAL_FAILURE(ExpectFinished(engine.get()));
  Settle(&cluster, 0);
  EXPECT_TRUE(cluster.Record(0, job).resting);
}

// --- Jobs that have ended at some servers only --------------------------------------------------

// A trainer was killed while it said its Leave: the peer has heard it, the home has not.
TEST(HalfMadeJobs, AJobThatHasEndedAtAPeerOnlyIsGoneOnWith) {
  for (const bool restarted : {false, true}) {
    DurableDirectories cluster(2);
    const uint64_t job = MakeJob(&cluster);
    FinishAt(&cluster, 1, job);
    if (restarted) cluster.Restart(1);
    const auto next = AskUntilAnswered(&cluster, 1, 201);
    ASSERT_TRUE(next.ok()) << next.status() << (restarted ? ", after a restart" : "");
    EXPECT_EQ(next->plan.job, job);
    for (const uint32_t id : {0u, 1u}) {
      EXPECT_TRUE(cluster.Record(id, job).epoch.Holds(1, 201)) << "server " << id;
      EXPECT_FALSE(cluster.Record(id, job).resting) << "server " << id;
    }
  }
}

TEST(HalfMadeJobs, APeerThatGoesDownWhileItsJobIsWokenUpIsWokenUpAgain) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  for (const uint32_t id : {0u, 1u}) FinishAt(&cluster, id, job);
  cluster.Keep("seal", 1);
  AttachAnswer first = Ask(&cluster, 1, 201);
  cluster.WaitForKept(1);  // The peer has opened its files again; its manifest does not say so yet.
  cluster.Restart(1);
  cluster.KeepNoMore();
  cluster.Release();
  EXPECT_EQ(first.Get().status().code(), absl::StatusCode::kUnavailable) << first.Get().status();
  const auto next = AskUntilAnswered(&cluster, 1, 201);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(cluster.Record(1, job).epoch.Holds(1, 201));
  EXPECT_NE(cluster.Engine(1, job), nullptr);
}

// It has not heard of the epoch that the home answers with.
TEST(HalfMadeJobs, APeerThatRestsInTheEpochBeforeComesToHoldTheNewestRecord) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  cluster.Keep("adopt", 1);
  AttachAnswer next = Ask(&cluster, 1, 201);
  cluster.WaitForKept(1);
  FinishAt(&cluster, 1, job);
  cluster.Restart(1);
  cluster.KeepNoMore();
  cluster.Release();
  ASSERT_TRUE(next.Get().ok()) << next.Get().status();
  EXPECT_EQ(cluster.Record(1, job).epoch.epoch, 2u);
  EXPECT_TRUE(cluster.Record(1, job).epoch.Holds(1, 201));
}

// Freeing an ended job after its time must not take the one that continues in its place.
TEST(HalfMadeJobs, AJobThatIsGoneOnWithOutlivesTheTimeOfItsEnd) {
  constexpr std::chrono::milliseconds kTtl{100};
  DurableDirectories cluster(2, {.job_ttl = kTtl});
  const uint64_t job = MakeJob(&cluster);
  for (const uint32_t id : {0u, 1u}) FinishAt(&cluster, id, job);
  const auto next = AskUntilAnswered(&cluster, 1, 201);
  ASSERT_TRUE(next.ok()) << next.status();
  for (const uint32_t id : {0u, 1u}) {
    cluster.PassTime(id, 2 * kTtl);
    Settle(&cluster, id);
    EXPECT_NE(cluster.Engine(id, job), nullptr) << "server " << id;
  }
  EXPECT_TRUE(AskUntilAnswered(&cluster, 1, 202).ok());
}

// Server 1 comes back without its files, the home after it.
void ExpectPeerGetsNoNewFiles(DurableDirectories* cluster, uint64_t job) {
  cluster->Stop(1);
  cluster->Disk(1)->Replace();
  cluster->Start(1);
  cluster->Restart(0);
  const auto refused = Ask(cluster, 0, 200).Get();
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kStateLost) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("server 1 lacks the files"));
  EXPECT_FALSE(testing::MakeStore(cluster->Disk(1), 1)->Find(job).ok());
}

TEST(HalfMadeJobs, APeerThatLostItsFilesIsNotGivenNewOnes) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  AttachAnswer second = Ask(&cluster, 1, 201);
  ASSERT_TRUE(second.Get().ok()) << second.Get().status();
  ExpectPeerGetsNoNewFiles(&cluster, job);
}

TEST(HalfMadeJobs, APeerThatLostItsFilesInTheFirstEpochIsNotGivenNewOnes) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  ExpectPeerGetsNoNewFiles(&cluster, job);
}

// --- A peer that has missed the end -------------------------------------------------------------

// As much memory as one job needs, by server.
std::vector<uint64_t> RoomForOneJob() {
  DurableDirectories cluster(2);
  MakeJob(&cluster);
  return {cluster.At(0)->apis().jobs->Load().memory_used_bytes,
          cluster.At(1)->apis().jobs->Load().memory_used_bytes};
}

// Servers with room for one job: in their memory, or in the quota of its tenant.
struct OneJobRoom {
  DurableDirectories::Options options;
  Reason refused;  // for another job
};
std::vector<OneJobRoom> RoomsForOneJob() {
  QuotaTable quota;
  quota.others.seats = 2;
  return {{{.memory_bytes = RoomForOneJob()}, Reason::kOverBudget},
          {{.quotas = {quota, quota}}, Reason::kOverQuota}};
}

// The answer to the two trainers of a new job.
absl::Status MakeNext(DurableDirectories* cluster, uint64_t incarnation) {
  AttachAnswer zero = Ask(cluster, 0, incarnation, "next");
  AttachAnswer one = Ask(cluster, 1, incarnation + 1, "next");
  EXPECT_EQ(zero.Get().status(), one.Get().status());
  return zero.Get().status();
}

void WaitUntilItRests(DurableDirectories* cluster, uint32_t id, uint64_t job) {
  while (!cluster->Record(id, job).resting) Settle(cluster, id);
}

TEST(OrphanedJobs, AJobWhoseEndAPeerMissedRestsThereWhenThatPeerHasStarted) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  FinishAt(&cluster, 0, job);
  cluster.Restart(1);
  WaitUntilItRests(&cluster, 1, job);
  while (cluster.At(1)->apis().jobs->Load().memory_used_bytes != 0) Settle(&cluster, 1);
  EXPECT_EQ(cluster.Engine(1, job), nullptr);
  const auto next = AskUntilAnswered(&cluster, 1, 201);
  EXPECT_TRUE(next.ok()) << next.status();
}

TEST(OrphanedJobs, APeerThatStartsBeforeTheHomeAsksUntilItIsThere) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  FinishAt(&cluster, 0, job);
  cluster.Stop(0);
  cluster.Restart(1);
  Settle(&cluster, 1);
  EXPECT_FALSE(cluster.Record(1, job).resting);
  cluster.Start(0);
  WaitUntilItRests(&cluster, 1, job);
}

// The last trainer is killed when it has left the home.
TEST(OrphanedJobs, AJobThatATrainerLeftAtTheHomeOnlyRestsAtThePeerWhenItsLeaseIsOut) {
  DurableDirectories cluster(2, {.lease = std::chrono::milliseconds(20)});
  const uint64_t job = MakeJob(&cluster);
  const std::shared_ptr<RoundEngine> engine = cluster.Engine(1, job);
  const auto sink = std::make_shared<RecordingSink>(8);
  Answer<absl::StatusOr<SlotWelcome>> welcome;
  engine->trainers().AttachSlot({.slot = 1, .incarnation = 101, .epoch = 1}, sink,
                                welcome.Setter());
  ASSERT_TRUE(welcome.Get().ok()) << welcome.Get().status();
  FinishAt(&cluster, 0, job);
  EXPECT_FALSE(cluster.Record(1, job).resting);
  engine->trainers().SlotLost({1, sink.get(), "it was killed"});
  WaitUntilItRests(&cluster, 1, job);
}

// Slot 0 has left the home only; the word of slot 1 is the last that the peer hears.
TEST(OrphanedJobs, AJobThatOneTrainerHasLeftEverywhereAndTheOtherAtTheHomeRestsAtThePeer) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  const std::shared_ptr<RoundEngine> engine = cluster.Engine(1, job);
  ASSERT_NO_FATAL_FAILURE(OpenStream(engine.get(), 1, 101));
  FinishAt(&cluster, 0, job);
  engine->trainers().Leave(1, 101);
  WaitUntilItRests(&cluster, 1, job);
}

TEST(OrphanedJobs, AHomeThatHasNoRoomToWakeAJobWakesNobody) {
  DurableDirectories cluster(2, {.memory_bytes = RoomForOneJob()});
  const uint64_t job = MakeJob(&cluster);
  for (const uint32_t id : {0u, 1u}) FinishAt(&cluster, id, job);
  ASSERT_TRUE(MakeNext(&cluster, 300).ok());
  const int told = cluster.Calls("create", 1);
  EXPECT_EQ(ReasonOf(Ask(&cluster, 0, 200).Get().status()), Reason::kOverBudget);
  Settle(&cluster, 1);
  EXPECT_EQ(cluster.Calls("create", 1), told);
  EXPECT_TRUE(cluster.Record(1, job).resting);
}

TEST(OrphanedJobs, AServerWithoutRoomIsNamedWithItsAddressByTheHome) {
  const std::vector<uint64_t> memory = {uint64_t{1} << 30, 100};
  DurableDirectories cluster(2, {.memory_bytes = memory});
  const absl::Status refused = MakeNext(&cluster, 300);
  EXPECT_EQ(ReasonOf(refused), Reason::kOverBudget);
  EXPECT_EQ(FieldsOf(refused).server, 1);
  EXPECT_THAT(std::string(refused.message()), ::testing::EndsWith(" [server 1 at 127.0.0.1:9001]"));
}

TEST(OrphanedJobs, ANewJobGetsTheRoomOfOneThatRestsAtItsHomeUnlessSomebodyIsStillInIt) {
  for (const auto& [options, no_room] : RoomsForOneJob()) {
    DurableDirectories cluster(2, options);
    const uint64_t job = MakeJob(&cluster);
    const std::shared_ptr<RoundEngine> engine = cluster.Engine(1, job);
    EXPECT_EQ(ReasonOf(MakeNext(&cluster, 300)), no_room) << "it runs";
    ASSERT_NO_FATAL_FAILURE(OpenStream(engine.get(), 0, 100));
    FinishAt(&cluster, 0, job);
    EXPECT_EQ(ReasonOf(MakeNext(&cluster, 400)), no_room) << "slot 0 has not left there";
    EXPECT_FALSE(cluster.Record(1, job).resting);
    engine->trainers().Leave(0, 100);
    EXPECT_TRUE(MakeNext(&cluster, 500).ok()) << MakeNext(&cluster, 500);
    EXPECT_TRUE(cluster.Record(1, job).resting);
  }
}

TEST(OrphanedJobs, AnAnswerThatIsOlderThanTheJobsWakingEndsNothing) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  FinishAt(&cluster, 0, job);
  cluster.Keep("rest answer", 0);
  cluster.Restart(1);
  cluster.WaitForKept(1);
  const auto next = AskUntilAnswered(&cluster, 1, 201);
  ASSERT_TRUE(next.ok()) << next.status();
  cluster.Release();
  Settle(&cluster, 1);
  Settle(&cluster, 1);
  Answer<JobStatus> state;
  cluster.Engine(1, job)->Status(state.Setter());
  EXPECT_EQ(state.Get().state, "running");
  EXPECT_FALSE(cluster.Record(1, job).resting);
}

TEST(OrphanedJobs, AHomeWithoutRoomWaitsForItsPeersToSayWhatHasEnded) {
  for (const auto& [options, no_room] : RoomsForOneJob()) {
    DurableDirectories cluster(2, options);
    const uint64_t job = MakeJob(&cluster);
    FinishAt(&cluster, 1, job);
    cluster.Keep("adopt", 1);
    cluster.Restart(0);
    cluster.WaitForKept(1);
    const int told = cluster.Calls("create", 1);
    const absl::Status early = MakeNext(&cluster, 300);
    EXPECT_EQ(cluster.Calls("create", 1), told) << "the home has nothing to tell";
    EXPECT_EQ(ReasonOf(early), Reason::kRecovering) << early;
    EXPECT_THAT(std::string(early.message()), HasSubstr("whether job \"job\" still runs"));
    cluster.KeepNoMore();
    cluster.Release();
    absl::Status made = early;
    for (uint64_t i = 0; ReasonOf(made) == Reason::kRecovering; ++i) {
      made = MakeNext(&cluster, 400 + 2 * i);
    }
    EXPECT_TRUE(made.ok()) << made;
    EXPECT_TRUE(cluster.Record(0, job).resting);
  }
}

// Nothing that another job gives back would help.
TEST(OrphanedJobs, AJobThatItsTenantsQuotaNeverAllowsDoesNotWaitForThem) {
  DurableDirectories cluster(2, RoomsForOneJob().back().options);
  const uint64_t job = MakeJob(&cluster);
  FinishAt(&cluster, 1, job);
  cluster.Keep("adopt", 1);
  cluster.Restart(0);
  cluster.WaitForKept(1);
  QuotaTable less;
  less.others.seats = 1;
  cluster.QuotasOf(0)->SetLimits(less);
  EXPECT_EQ(ReasonOf(MakeNext(&cluster, 300)), Reason::kOverQuota);
  cluster.KeepNoMore();
  cluster.Release();
}

// --- Orders that come late ----------------------------------------------------------------------

// An attempt whose order to server 1 is on its way when the home gives the attempt up.
void GiveAttemptUp(DurableDirectories* cluster) {
  cluster->Keep("create", 1);
  AttachAnswer zero = Ask(cluster, 0, 100), one = Ask(cluster, 1, 101);
  cluster->WaitForKept(1);
  cluster->At(0)->PeerLost(1, "no heartbeat");
  for (AttachAnswer* answer : {&zero, &one}) {
    EXPECT_EQ(ReasonOf(answer->Get().status()), Reason::kServerLost);
  }
  cluster->KeepNoMore();
}

absl::Status Order(DurableDirectories* cluster, const JobPlan& plan) {
  Answer<absl::Status> answer;
  cluster->At(1)->apis().shares->CreateJob(plan, answer.Setter());
  return answer.Get();
}

TEST(HalfMadeJobs, ALateOrderOfAnAttemptThatWasGivenUpLeavesTheJobOfALaterOne) {
  for (const bool restarted : {false, true}) {
    DurableDirectories cluster(2, {.memory_bytes = RoomForOneJob()});
    GiveAttemptUp(&cluster);
    const uint64_t job = MakeJob(&cluster);
    if (restarted) cluster.Restart(1);
    const int drops = cluster.Calls("drop", 1);
    cluster.Release();
    while (cluster.Calls("drop", 1) == drops) Settle(&cluster, 0);
    Settle(&cluster, 1);
    const std::shared_ptr<RoundEngine> engine = cluster.Engine(1, job);
    ASSERT_NE(engine, nullptr) << (restarted ? "after a restart" : "");
    Answer<JobStatus> status;
    engine->Status(status.Setter());
    EXPECT_EQ(status.Get().state, "running");
    EXPECT_EQ(cluster.Record(1, job).attempt.number, cluster.Record(0, job).attempt.number);
    EXPECT_EQ(cluster.Disk(1)->List(testing::kJobsRoot)->size(), 1u);
  }
}

TEST(HalfMadeJobs, AnOrderOfAnEarlierAttemptIsRefusedForThatEvenWhenTheLaterJobHasRun) {
  DurableDirectories cluster(2);
  const uint64_t job = MakeJob(&cluster);
  ASSERT_TRUE(Ask(&cluster, 1, 201).Get().ok());  // The second epoch.
  JobPlan order = cluster.Record(1, job);
  order.job += 1;
  order.making = true;
  const MakingAttempt attempt = order.attempt;
  ASSERT_NE(attempt.home, 0u);
  for (const bool restarted : {false, true}) {
    if (restarted) cluster.Restart(1);
    order.attempt = {attempt.home, attempt.number - 1};
    const absl::Status late = Order(&cluster, order);
    EXPECT_EQ(ReasonOf(late), Reason::kNameInUse) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("comes late"));
    order.attempt.number = attempt.number + 1;
    EXPECT_EQ(ReasonOf(Order(&cluster, order)), Reason::kStateLost);
    order.attempt = {attempt.home + 1, attempt.number - 1};
    EXPECT_EQ(ReasonOf(Order(&cluster, order)), Reason::kStateLost) << "the home has forgotten";
    order.attempt = {};
    EXPECT_EQ(ReasonOf(Order(&cluster, order)), Reason::kStateLost) << "the home is an older one";
  }
  EXPECT_EQ(cluster.Record(1, job).attempt.number, attempt.number);
}

// --- A home that has lost its records -----------------------------------------------------------

void LoseHome(DurableDirectories* cluster) {
  cluster->Stop(0);
  cluster->Disk(0)->Replace();
  cluster->Start(0);
}

TEST(HalfMadeJobs, AJobThatItsHomeHasLostDoesNotBeginAgain) {
  for (const bool rests : {false, true}) {
    DurableDirectories cluster(2);
    const uint64_t job = MakeJob(&cluster);
    ASSERT_TRUE(Ask(&cluster, 1, 201).Get().ok());  // The second epoch.
    LoseHome(&cluster);
    if (rests) {
      cluster.Engine(1, job)->Fail(absl::UnavailableError("over"));
      while (!cluster.Record(1, job).resting) Settle(&cluster, 1);
      cluster.Restart(1);
    }
    AttachAnswer zero = Ask(&cluster, 0, 300), one = Ask(&cluster, 1, 301);
    for (AttachAnswer* answer : {&zero, &one}) {
      const absl::Status refused = answer->Get().status();
      EXPECT_EQ(ReasonOf(refused), Reason::kStateLost) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("files of job \"job\""));
      // A starting server reports its jobs to the home, perhaps before the home asks.
      if (rests) continue;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("server 1 has files"));
      EXPECT_THAT(std::string(refused.message()), HasSubstr(".gone"));
    }
    Settle(&cluster, 0);
    Settle(&cluster, 1);
    EXPECT_EQ(cluster.Record(1, job).epoch.epoch, 2u);
    EXPECT_TRUE(cluster.Disk(0)->Paths().empty());
  }
}

TEST(HalfMadeJobs, AnAbortedCreationMakesRoomForTheNextOne) {
  for (const bool restarted : {false, true}) {
    DurableDirectories cluster(2);
    const uint64_t leftover = MakeJob(&cluster);  // No round was voted on.
    LoseHome(&cluster);
    if (restarted) cluster.Restart(1);
    AttachAnswer zero = Ask(&cluster, 0, 300), one = Ask(&cluster, 1, 301);
    ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
    EXPECT_NE(zero.Get()->plan.job, leftover);
    EXPECT_FALSE(testing::MakeStore(cluster.Disk(1), 1)->Find(leftover).ok());
    EXPECT_EQ(cluster.Disk(1)->List(testing::kJobsRoot)->size(), 1u);
  }
}

}  // namespace
}  // namespace ballast::server
