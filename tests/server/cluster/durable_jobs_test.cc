// Seats of durable jobs: which process gets one, and that all servers hold one record per epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/base/failpoint.h"
#include "tests/server/cluster/durable_cluster.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::AttachAnswer;
using testing::DurableDirectories;
using ::testing::HasSubstr;
using testing::RecordingSink;
using testing::SeatCall;

constexpr uint64_t kFirst = 100;  // + slot: the processes that made the job

class DurableJobsTest : public ::testing::Test {
 protected:
  // Two trainers make the job on `servers` servers.
  void Make(uint32_t servers, const DurableDirectories::Options& options = {}) {
    cluster_ = std::make_unique<DurableDirectories>(servers, options);
    const auto made = AttachWorld(kFirst);
    ASSERT_TRUE(made.ok()) << made.status();
    job_ = made->plan.job;
    EXPECT_EQ(made->plan.epoch.epoch, 1u);
    EXPECT_FALSE(made->resumed);
  }
  absl::StatusOr<AttachResult> AttachWorld(uint64_t first, Resume resume = Resume::kAuto) {
    AttachAnswer zero, one;
    cluster_->At(0)->trainers()->Attach(SeatCall(0, first, resume), zero.Setter());
    cluster_->At(0)->trainers()->Attach(SeatCall(1, first + 1, resume), one.Setter());
    const auto other = one.Get();
    return other.ok() ? zero.Get() : other;
  }
  AttachAnswer Ask(uint32_t slot, uint64_t incarnation, Resume resume = Resume::kAuto) {
    return Ask(SeatCall(slot, incarnation, resume));
  }
  AttachAnswer Ask(const AttachCall& call) {
    AttachAnswer answer;
    cluster_->At(0)->trainers()->Attach(call, answer.Setter());
    return answer;
  }
  // Everything the directory was given before has been taken in.
  void Settle(uint32_t server) {
    Answer<std::vector<JobStatus>> jobs;
    cluster_->At(server)->operators()->Status(jobs.Setter());
    jobs.Get();
  }
  // As Settle, and those who asked for seats have been told of, or wait for, the streams.
  void SettleSeats() {
    Settle(0);
    Answer<JobStatus> snapshot;
    cluster_->Engine(0, job_)->Status(snapshot.Setter());
    snapshot.Get();
    Settle(0);
  }
  std::shared_ptr<RecordingSink> OpenStream(uint32_t server, uint32_t slot, uint64_t incarnation,
                                            uint32_t epoch = 1) {
    auto sink = std::make_shared<RecordingSink>(8);
    Answer<absl::StatusOr<SlotWelcome>> welcome;
    cluster_->Engine(server, job_)
        ->AttachSlot({.slot = slot, .incarnation = incarnation, .epoch = epoch}, sink,
                     welcome.Setter());
    EXPECT_TRUE(welcome.Get().ok()) << welcome.Get().status();
    return sink;
  }
  // Both trainers leave every server, and the job's end is known.
  void Finish(uint32_t servers) {
    for (uint32_t id = 0; id < servers; ++id) {
      const std::shared_ptr<RoundEngine> engine = cluster_->Engine(id, job_);
      for (const uint32_t slot : {0u, 1u}) {
        OpenStream(id, slot, kFirst + slot);
        engine->Leave(slot, kFirst + slot);
      }
      Answer<JobStatus> snapshot;
      engine->Status(snapshot.Setter());
      EXPECT_EQ(snapshot.Get().state, "finished");
      Settle(id);
      EXPECT_TRUE(cluster_->Record(id, job_).resting);
    }
  }
  absl::StatusOr<DurableJobs> List(uint32_t server) {
    Answer<absl::StatusOr<DurableJobs>> jobs;
    cluster_->At(server)->operators()->ListJobs(jobs.Setter());
    return jobs.Get();
  }
  absl::Status Delete(const std::string& name, bool force = false) {
    Answer<absl::Status> deleted;
    cluster_->At(0)->operators()->DeleteJob(name, force, deleted.Setter());
    return deleted.Get();
  }
  absl::StatusOr<SealAnswer> Seal(uint32_t server, uint32_t epoch) {
    Answer<absl::StatusOr<SealAnswer>> sealed;
    cluster_->At(server)->peers()->Seal(job_, epoch, sealed.Setter());
    return sealed.Get();
  }
  void ExpectEpochEverywhere(uint32_t servers, const EpochRecord& epoch) {
    for (uint32_t id = 0; id < servers; ++id) {
      const JobPlan plan = cluster_->Record(id, job_);
      EXPECT_EQ(plan.epoch.epoch, epoch.epoch) << "server " << id;
      EXPECT_EQ(plan.epoch.start_round, epoch.start_round) << "server " << id;
      EXPECT_EQ(plan.sealed_epoch, 0u) << "server " << id;
      ASSERT_EQ(plan.epoch.members.size(), epoch.members.size());
      for (size_t slot = 0; slot < epoch.members.size(); ++slot) {
        EXPECT_EQ(plan.epoch.members[slot].incarnation, epoch.members[slot].incarnation);
      }
    }
  }

  std::unique_ptr<DurableDirectories> cluster_;
  uint64_t job_ = 0;
};

// --- Who gets a seat ----------------------------------------------------------------------------

TEST_F(DurableJobsTest, ANewcomerGetsItsSeatInTheNextEpochWhenTheOldStreamIsGone) {
  Make(2);
  const auto result = Ask(1, 900).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->resumed);
  EXPECT_EQ(result->plan.job, job_);
  EXPECT_EQ(result->plan.epoch.epoch, 2u);
  EXPECT_EQ(result->plan.epoch.start_round, 1u);
  EXPECT_EQ(result->plan.epoch.members[0].incarnation, kFirst);
  EXPECT_EQ(result->plan.epoch.members[1].incarnation, 900u);
  ExpectEpochEverywhere(2, result->plan.epoch);
}

TEST_F(DurableJobsTest, WithoutResumeAUsedNameIsInUse) {
  Make(2);
  const absl::Status status = Ask(1, 900, Resume::kNever).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kNameInUse);
  EXPECT_THAT(std::string(status.message()), HasSubstr("already has all its trainers"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("resume=\"auto\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("`ballastctl jobs delete job --force`"));
  EXPECT_EQ(cluster_->Record(0, job_).epoch.epoch, 1u);
}

TEST_F(DurableJobsTest, MustResumeAnUnknownJobIsRefusedAndMakesNothing) {
  cluster_ = std::make_unique<DurableDirectories>(2);
  EXPECT_EQ(ReasonOf(Ask(0, 900, Resume::kMust).Get().status()), Reason::kUnknownJob);
  for (uint32_t id : {0u, 1u}) EXPECT_TRUE(cluster_->Disk(id)->Paths().empty());
}

TEST_F(DurableJobsTest, MustResumeAKnownJobGetsTheSeat) {
  Make(2);
  const auto result = Ask(0, 900, Resume::kMust).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.epoch.epoch, 2u);
}

TEST_F(DurableJobsTest, AnotherSpecIsRefusedByFieldAndChangesNothing) {
  Make(2);
  AttachCall call = SeatCall(1, 900);
  call.spec.max_grad_norm = 3;
  const absl::Status status = Ask(call).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kSpecMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_grad_norm"));
  EXPECT_EQ(ReasonOf(Ask(SeatCall(2, 900)).Get().status()), Reason::kSpecMismatch);
  EXPECT_EQ(Ask(1, kFirst + 1).Get()->plan.epoch.epoch, 1u) << "the holder is not disturbed";
}

TEST_F(DurableJobsTest, AJobWithoutDurabilityCannotBeGoneOnWith) {
  cluster_ = std::make_unique<DurableDirectories>(1);
  AttachCall call = SeatCall(0, 7);
  call.spec.world = 1;
  call.spec.durability = Durability::kNone;
  ASSERT_TRUE(Ask(call).Get().ok());
  call.incarnation = 8;
  EXPECT_EQ(ReasonOf(Ask(call).Get().status()), Reason::kNameInUse);
}

TEST_F(DurableJobsTest, ASeatThatIsHeldOpenIsTakenAndStaysWithItsProcess) {
  Make(2, {.takeover_wait = std::chrono::milliseconds(20)});
  const auto sink = OpenStream(0, 1, kFirst + 1);
  const absl::Status status = Ask(1, 900).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kSlotTaken) << status;
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(FieldsOf(status).slot, 1);
  EXPECT_EQ(cluster_->Record(0, job_).epoch.epoch, 1u);
  MutexLock lock(&sink->mu_);
  EXPECT_TRUE(sink->status_.ok()) << sink->status_;
}

TEST_F(DurableJobsTest, ASeatThatIsGivenUpMeanwhileGoesToTheOneWhoWaits) {
  Make(2);
  const auto sink = OpenStream(0, 1, kFirst + 1);
  AttachAnswer answer = Ask(1, 900);
  Settle(0);
  EXPECT_FALSE(answer.Has());
  cluster_->Engine(0, job_)->SlotLost(1, sink.get(), "killed");
  const auto result = answer.Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.epoch.members[1].incarnation, 900u);
}

TEST_F(DurableJobsTest, OfTwoProcessesThatAskForOneSeatTheLaterGetsIt) {
  Make(1);
  const auto sink = OpenStream(0, 1, kFirst + 1);
  AttachAnswer first = Ask(1, 900);
  AttachAnswer second = Ask(1, 901);
  EXPECT_EQ(first.Get().status().code(), absl::StatusCode::kCancelled);
  cluster_->Engine(0, job_)->SlotLost(1, sink.get(), "killed");
  ASSERT_TRUE(second.Get().ok()) << second.Get().status();
  EXPECT_EQ(second.Get()->plan.epoch.members[1].incarnation, 901u);
}

TEST_F(DurableJobsTest, TwoNewcomersAtOnceBothGetTheirSeats) {
  Make(2);
  const auto result = AttachWorld(900);
  ASSERT_TRUE(result.ok()) << result.status();
  const EpochRecord epoch = cluster_->Record(0, job_).epoch;
  EXPECT_EQ(epoch.members[0].incarnation, 900u);
  EXPECT_EQ(epoch.members[1].incarnation, 901u);
  EXPECT_LE(epoch.epoch, 3u);
  ExpectEpochEverywhere(2, epoch);
}

TEST_F(DurableJobsTest, ANewcomerThatHangsUpDoesNotGetTheSeat) {
  Make(1);
  const auto sink = OpenStream(0, 1, kFirst + 1);
  AttachCall call = SeatCall(1, 900);
  call.call = 5;
  AttachAnswer answer = Ask(call);
  cluster_->At(0)->trainers()->AttachCancelled("job", 1, 5);
  Settle(0);
  cluster_->Engine(0, job_)->SlotLost(1, sink.get(), "killed");
  // The next change, of the other seat, leaves this one alone.
  const auto result = Ask(0, 901).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.epoch.members[1].incarnation, kFirst + 1);
  EXPECT_FALSE(answer.Has());
}

TEST_F(DurableJobsTest, ANewcomerWhileTheJobIsMadeGetsItsSeatAfterwards) {
  cluster_ = std::make_unique<DurableDirectories>(2);
  cluster_->Keep("create", 1);
  AttachAnswer zero = Ask(0, kFirst);
  AttachAnswer one = Ask(1, kFirst + 1);
  cluster_->WaitForKept(1);
  AttachAnswer again = Ask(1, 900);  // Its first process died in between.
  Settle(0);
  cluster_->Release();
  ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
  EXPECT_EQ(one.Get().status().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(again.Get().ok()) << again.Get().status();
  EXPECT_EQ(again.Get()->plan.epoch.members[1].incarnation, 900u);
}

// --- While the epoch changes --------------------------------------------------------------------

TEST_F(DurableJobsTest, ASurvivorThatAttachesAgainDuringTheChangeLearnsOfTheNewEpoch) {
  Make(2);
  cluster_->Keep("seal", 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->WaitForKept(1);
  AttachAnswer lost = Ask(0, kFirst);
  AttachAnswer survivor = Ask(0, kFirst);
  EXPECT_EQ(lost.Get().status().code(), absl::StatusCode::kCancelled) << "only one call waits";
  EXPECT_FALSE(survivor.Has());
  cluster_->Release();
  for (AttachAnswer* answer : {&newcomer, &survivor}) {
    ASSERT_TRUE(answer->Get().ok()) << answer->Get().status();
    EXPECT_EQ(answer->Get()->plan.epoch.epoch, 2u);
  }
}

TEST_F(DurableJobsTest, AStreamOfTheOldEpochIsToldToAttachAgain) {
  Make(1);
  const auto sink = OpenStream(0, 0, kFirst);
  ASSERT_TRUE(Ask(1, 900).Get().ok());
  EXPECT_EQ(ReasonOf(sink->Wait(1)), Reason::kStaleEpoch);
  EXPECT_EQ(Ask(0, kFirst).Get()->plan.epoch.epoch, 2u);
}

TEST_F(DurableJobsTest, ANewcomerThatComesDuringTheChangeHasItsTurn) {
  Make(2);
  cluster_->Keep("adopt", 1);
  AttachAnswer one = Ask(1, 900);
  cluster_->WaitForKept(1);  // The record of epoch 2 is written.
  AttachAnswer zero = Ask(0, 901);
  Settle(0);
  cluster_->KeepNoMore();
  cluster_->Release();
  ASSERT_TRUE(one.Get().ok()) << one.Get().status();
  ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
  EXPECT_EQ(zero.Get()->plan.epoch.epoch, 3u);
  ExpectEpochEverywhere(2, zero.Get()->plan.epoch);
}

TEST_F(DurableJobsTest, ALiveSeatIsNotGivenAwayBecauseAnotherChangesHands) {
  Make(2, {.return_wait = std::chrono::hours(1)});
  OpenStream(0, 0, kFirst);
  AttachAnswer impostor = Ask(0, 950);  // A second process with rank 0.
  SettleSeats();
  const auto result = Ask(1, 900).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.epoch.members[0].incarnation, kFirst);
  // Nor while its process, whose stream the change closed, is on its way back.
  AttachAnswer another = Ask(0, 951);
  SettleSeats();
  const auto survivor = Ask(0, kFirst).Get();
  ASSERT_TRUE(survivor.ok()) << survivor.status();
  EXPECT_EQ(survivor->plan.epoch.epoch, 2u);
  OpenStream(0, 0, kFirst, 2);
  EXPECT_FALSE(another.Has());
}

TEST_F(DurableJobsTest, ASurvivorThatDoesNotComeBackLosesItsSeat) {
  Make(2, {.return_wait = std::chrono::milliseconds(50)});
  OpenStream(0, 0, kFirst);
  AttachAnswer waiting = Ask(0, 950);
  ASSERT_TRUE(Ask(1, 900).Get().ok());
  ASSERT_TRUE(waiting.Get().ok()) << waiting.Get().status();
  EXPECT_EQ(waiting.Get()->plan.epoch.members[0].incarnation, 950u);
  EXPECT_EQ(waiting.Get()->plan.epoch.members[1].incarnation, 900u);
}

// It lost its stream for a moment and is not the process the launcher counts on any more.
TEST_F(DurableJobsTest, AHolderWhoseSeatIsBeingGivenAwayIsToldSoAndTheEpochChangesOnce) {
  Make(2);
  cluster_->Keep("seal", 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->WaitForKept(1);
  AttachAnswer leftover = Ask(1, kFirst + 1);
  Settle(0);
  cluster_->KeepNoMore();
  cluster_->Release();
  ASSERT_TRUE(newcomer.Get().ok()) << newcomer.Get().status();
  EXPECT_EQ(ReasonOf(leftover.Get().status()), Reason::kWrongIncarnation);
  Settle(0);
  EXPECT_EQ(Ask(1, 900).Get()->plan.epoch.epoch, 2u);
}

// --- Servers that fail --------------------------------------------------------------------------

TEST_F(DurableJobsTest, AServerThatCannotSealIsNamedAndAskedAgainByTheNextCall) {
  Make(2);
  cluster_->SetRule([](const std::string& call, uint32_t) {
    return call == "seal" ? ReasonedError(absl::StatusCode::kUnavailable, Reason::kServerLost,
                                          "server 1 does not answer", {.server = 1})
                          : absl::OkStatus();
  });
  const absl::Status status = Ask(1, 900).Get().status();
  EXPECT_EQ(ReasonOf(status), Reason::kServerLost);
  EXPECT_EQ(cluster_->Record(1, job_).epoch.epoch, 1u);
  cluster_->SetRule(nullptr);
  const auto result = Ask(1, 900).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.epoch.epoch, 2u);
  ExpectEpochEverywhere(2, result->plan.epoch);
}

TEST_F(DurableJobsTest, AServerThatDoesNotAdoptIsAskedUntilItDoes) {
  Make(3);
  auto failures = std::make_shared<std::atomic<int>>(2);
  cluster_->SetRule([failures](const std::string& call, uint32_t server) {
    return call == "adopt" && server == 2 && failures->fetch_sub(1) > 0
               ? absl::UnavailableError("not now")
               : absl::OkStatus();
  });
  const auto result = Ask(1, 900).Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_LT(failures->load(), 0);
  ExpectEpochEverywhere(3, result->plan.epoch);
}

TEST_F(DurableJobsTest, NobodyWaitsForAServerThatRefusesToAdoptButItIsAskedAgain) {
  Make(2);
  cluster_->SetRule([](const std::string& call, uint32_t) {
    return call == "adopt" ? ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                                           "server 1 has lost the job", {.server = 1})
                           : absl::OkStatus();
  });
  EXPECT_EQ(ReasonOf(Ask(1, 900).Get().status()), Reason::kStateLost);
  cluster_->SetRule(nullptr);
  const auto result = Ask(1, 900).Get();  // Answered when the change is over.
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->plan.epoch.epoch, 2u);
  ExpectEpochEverywhere(2, result->plan.epoch);
}

// Two changes of epoch 1 overlap, and an answer to the first completes the second. Its own answer
// comes while the record is being written, when there is one newcomer more.
TEST_F(DurableJobsTest, LateAnswersOfAChangeThatWasGivenUpWriteNoSecondRecord) {
  Make(3);
  cluster_->Keep("seal", 2);
  cluster_->SetRule([](const std::string& call, uint32_t server) {
    return call == "seal" && server == 1 ? absl::UnavailableError("away") : absl::OkStatus();
  });
  EXPECT_FALSE(Ask(1, 900).Get().ok());
  cluster_->SetRule(nullptr);
  AttachAnswer one = Ask(1, 900);
  cluster_->WaitForKept(2);
  ASSERT_TRUE(Failpoints::Configure("log.before_sync=pause").ok());
  cluster_->Release();
  Failpoints::WaitForPause("log.before_sync");  // The home is about to adopt.
  AttachAnswer zero = Ask(0, 901);
  SettleSeats();
  cluster_->Release();
  EXPECT_TRUE(Seal(2, 1).ok());  // Comes behind it.
  Settle(0);
  cluster_->KeepNoMore();
  Failpoints::Reset();
  ASSERT_TRUE(one.Get().ok()) << one.Get().status();
  EXPECT_EQ(one.Get()->plan.epoch.members[0].incarnation, kFirst);
  ASSERT_TRUE(zero.Get().ok()) << zero.Get().status();
  EXPECT_EQ(zero.Get()->plan.epoch.epoch, 3u);
  ExpectEpochEverywhere(3, zero.Get()->plan.epoch);
}

// Stops whatever thread comes to it until it is opened.
class Gate {
 public:
  void Pass() {
    MutexLock lock(&mu_);
    reached_ = true;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(&mu_);
  }
  void WaitUntilReached() {
    MutexLock lock(&mu_);
    while (!reached_) changed_.Wait(&mu_);
  }
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mu_) = false;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(DurableJobsTest, ASealThatIsRepeatedLateDoesNotUndoTheNextEpoch) {
  Make(1);
  const JobPlan plan = cluster_->Record(0, job_);
  const std::shared_ptr<RoundEngine> engine = cluster_->Engine(0, job_);
  // Both seals reach the engine before the directory hears of the first answer, and stands still.
  Gate before, at_answer;
  Answer<absl::StatusOr<SealAnswer>> repeated;
  JobPlan unknown = plan;
  ++unknown.job;
  cluster_->At(0)->peers()->ExtendJob(unknown, [&](const absl::Status&) { before.Pass(); });
  cluster_->At(0)->peers()->Seal(job_, 1, [&](const auto&) { at_answer.Pass(); });
  cluster_->At(0)->peers()->Seal(job_, 1, repeated.Setter());
  before.Open();
  at_answer.WaitUntilReached();
  JobPlan next = plan;
  next.epoch.epoch = 2;
  Answer<absl::Status> adopted;
  engine->Adopt(
      next, engine->window_extents(),
      [&] { return testing::MakeStore(cluster_->Disk(0))->Save(next); }, adopted.Setter());
  ASSERT_TRUE(adopted.Get().ok()) << adopted.Get();
  at_answer.Open();
  EXPECT_TRUE(repeated.Get().ok()) << "it was given in epoch 1";
  Settle(0);
  EXPECT_EQ(cluster_->Record(0, job_).epoch.epoch, 2u);
}

TEST_F(DurableJobsTest, AJobThatCannotBeMadeEverywhereIsNowhereOnDisk) {
  cluster_ = std::make_unique<DurableDirectories>(3);
  cluster_->SetRule([](const std::string& call, uint32_t server) {
    return call == "create" && server == 2 ? absl::ResourceExhaustedError("disk full")
                                           : absl::OkStatus();
  });
  EXPECT_FALSE(AttachWorld(kFirst).ok());
  for (uint32_t id : {0u, 1u}) {
    // The peer's files go when its engine has let go of them.
    while (!cluster_->Disk(id)->Paths().empty()) Settle(id);
  }
  cluster_->SetRule(nullptr);
  for (uint32_t id : {0u, 1u}) cluster_->Restart(id);
  EXPECT_EQ(ReasonOf(Ask(0, 900, Resume::kMust).Get().status()), Reason::kUnknownJob);
  EXPECT_TRUE(AttachWorld(kFirst).ok()) << "the name is free";
}

// --- Servers that are started again -------------------------------------------------------------

TEST_F(DurableJobsTest, AfterARestartOfAllServersMembersAreKnownAndNewcomersGetSeats) {
  Make(2);
  ASSERT_TRUE(Ask(1, 900).Get().ok());
  for (uint32_t id : {0u, 1u}) cluster_->Restart(id);
  const auto survivor = Ask(0, kFirst).Get();
  ASSERT_TRUE(survivor.ok()) << survivor.status();
  EXPECT_EQ(survivor->plan.epoch.epoch, 2u);
  EXPECT_EQ(survivor->plan.job, job_);
  EXPECT_EQ(survivor->plan.epoch.members[1].incarnation, 900u);
  const auto newcomer = Ask(0, 901).Get();
  ASSERT_TRUE(newcomer.ok()) << newcomer.status();
  EXPECT_EQ(newcomer->plan.epoch.epoch, 3u);
  ExpectEpochEverywhere(2, newcomer->plan.epoch);
}

TEST_F(DurableJobsTest, APeerThatMissedTheNewestEpochAdoptsItWhenTheHomeIsStartedAgain) {
  Make(2);
  cluster_->Keep("adopt", 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->WaitForKept(1);  // The home's record is final.
  EXPECT_EQ(cluster_->Record(0, job_).epoch.epoch, 2u);
  EXPECT_EQ(cluster_->Record(1, job_).epoch.epoch, 1u);
  cluster_->KeepNoMore();
  cluster_->Restart(0);
  const auto again = Ask(1, 900).Get();  // Its call was lost; it is a member.
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->plan.epoch.epoch, 2u);
  ExpectEpochEverywhere(2, again->plan.epoch);
  EXPECT_FALSE(newcomer.Has());
}

TEST_F(DurableJobsTest, APeerThatWasDownTooAdoptsItWhenItIsBack) {
  Make(2);
  cluster_->Keep("adopt", 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->WaitForKept(1);
  cluster_->KeepNoMore();
  cluster_->Stop(1);
  cluster_->Restart(0);
  AttachAnswer again = Ask(1, 900);
  Settle(0);
  EXPECT_FALSE(again.Has()) << "answered when all servers are in the epoch";
  cluster_->Start(1);
  ASSERT_TRUE(again.Get().ok()) << again.Get().status();
  ExpectEpochEverywhere(2, again.Get()->plan.epoch);
}

TEST_F(DurableJobsTest, APeerThatWasSealedAndStartedAgainAdoptsTheEpoch) {
  Make(2);
  cluster_->Keep("adopt", 1);
  AttachAnswer newcomer = Ask(1, 900);
  cluster_->WaitForKept(1);
  EXPECT_EQ(cluster_->Record(1, job_).sealed_epoch, 1u);
  cluster_->Restart(1);
  EXPECT_EQ(cluster_->Record(1, job_).sealed_epoch, 1u);
  cluster_->KeepNoMore();
  cluster_->Release();
  ASSERT_TRUE(newcomer.Get().ok()) << newcomer.Get().status();
  ExpectEpochEverywhere(2, newcomer.Get()->plan.epoch);
}

// --- Jobs that ended ----------------------------------------------------------------------------

TEST_F(DurableJobsTest, AFinishedJobRestsOnDiskUntilItIsGoneOnWith) {
  for (const bool restart : {false, true}) {
    Make(2);
    Finish(2);
    if (restart) {
      for (const uint32_t id : {0u, 1u}) cluster_->Restart(id);
      EXPECT_EQ(cluster_->At(0)->operators()->memory_used_bytes(), 0u);
    }
    const absl::Status in_use = Ask(0, 900, Resume::kNever).Get().status();
    EXPECT_EQ(ReasonOf(in_use), Reason::kNameInUse);
    EXPECT_THAT(std::string(in_use.message()),
                HasSubstr("was run before and is kept on disk; use resume=\"auto\""));
    EXPECT_THAT(std::string(in_use.message()), HasSubstr("`ballastctl jobs delete job`"));
    const auto result = AttachWorld(900, Resume::kMust);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->resumed);
    EXPECT_EQ(result->plan.job, job_);
    for (const uint32_t id : {0u, 1u}) {
      EXPECT_FALSE(cluster_->Record(id, job_).resting) << "server " << id;
      const EpochRecord epoch = cluster_->Record(id, job_).epoch;
      EXPECT_EQ(epoch.members[0].incarnation, 900u);
      EXPECT_EQ(epoch.members[1].incarnation, 901u);
      OpenStream(id, 0, 900, epoch.epoch);
    }
    EXPECT_EQ(cluster_->Disk(0)->List(testing::kJobsRoot)->size(), 1u) << "the same files";
  }
}

TEST_F(DurableJobsTest, AFinishedJobIsNotGoneOnWithUnderAnotherSpec) {
  Make(1);
  Finish(1);
  AttachCall call = SeatCall(0, 900);
  call.spec.max_grad_norm = 3;
  EXPECT_EQ(ReasonOf(Ask(call).Get().status()), Reason::kSpecMismatch);
  EXPECT_TRUE(AttachWorld(900).ok());
}

TEST_F(DurableJobsTest, ASealOfAnotherEpochIsRefusedByName) {
  Make(1);
  EXPECT_EQ(ReasonOf(Seal(0, 2).status()), Reason::kFutureEpoch);
  ASSERT_TRUE(Ask(1, 900).Get().ok());
  EXPECT_EQ(ReasonOf(Seal(0, 1).status()), Reason::kStaleEpoch);
  EXPECT_EQ(cluster_->Record(0, job_).sealed_epoch, 0u);
}

TEST_F(DurableJobsTest, AServerWithoutTheJobSaysSo) {
  Make(1);
  Answer<absl::StatusOr<SealAnswer>> sealed;
  cluster_->At(0)->peers()->Seal(job_ + 1, 1, sealed.Setter());
  EXPECT_EQ(ReasonOf(sealed.Get().status()), Reason::kUnknownJob);
  JobPlan plan = cluster_->Record(0, job_);
  ++plan.job;
  Answer<absl::Status> adopted;
  cluster_->At(0)->peers()->AdoptEpoch(plan, adopted.Setter());
  EXPECT_EQ(ReasonOf(adopted.Get()), Reason::kUnknownJob);
}

// --- What operators ask -------------------------------------------------------------------------

TEST_F(DurableJobsTest, RunningAndRestingJobsAreListedAtTheHomeOnly) {
  Make(2);
  OpenStream(0, 1, kFirst + 1);
  absl::StatusOr<DurableJobs> jobs = List(0);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().name, "job");
  EXPECT_EQ(jobs->front().state, "running");
  EXPECT_EQ(jobs->front().open_streams, 1u);
  EXPECT_EQ(jobs->front().parameters, 340u);
  EXPECT_EQ(jobs->front().servers, (std::vector<uint32_t>{0, 1}));
  EXPECT_GT(jobs->front().disk_bytes, 0u);
  EXPECT_EQ(ReasonOf(List(1).status()), Reason::kNotHome);
  Finish(2);
  for (const uint32_t id : {0u, 1u}) cluster_->Restart(id);
  jobs = List(0);
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().state, "resting");
}

TEST_F(DurableJobsTest, ADeletedRestingJobIsNowhereAndItsNameIsFree) {
  Make(2);
  Finish(2);
  ASSERT_TRUE(Delete("job").ok());
  for (const uint32_t id : {0u, 1u}) {
    EXPECT_TRUE(cluster_->Disk(id)->Paths().empty()) << "server " << id;
  }
  EXPECT_TRUE(List(0)->empty());
  EXPECT_EQ(ReasonOf(Delete("job")), Reason::kUnknownJob);
  for (const uint32_t id : {0u, 1u}) cluster_->Restart(id);
  EXPECT_TRUE(List(0)->empty());
  EXPECT_TRUE(AttachWorld(kFirst, Resume::kNever).ok());
}

TEST_F(DurableJobsTest, AJobWithTrainersIsDeletedByForceOnlyAndTheyAreTold) {
  Make(2);
  const auto here = OpenStream(0, 0, kFirst);
  const auto there = OpenStream(1, 0, kFirst);
  const absl::Status busy = Delete("job");
  EXPECT_EQ(ReasonOf(busy), Reason::kJobBusy) << busy;
  EXPECT_EQ(List(0)->size(), 1u);
  ASSERT_TRUE(Delete("job", /*force=*/true).ok());
  EXPECT_EQ(ReasonOf(here->Wait(1)), Reason::kJobFailed);
  EXPECT_EQ(ReasonOf(there->Wait(1)), Reason::kJobFailed);
  for (const uint32_t id : {0u, 1u}) {
    EXPECT_TRUE(cluster_->Disk(id)->Paths().empty()) << "server " << id;
  }
  EXPECT_TRUE(List(0)->empty());
}

TEST_F(DurableJobsTest, AJobWhoseTrainersAreGoneIsDeletedWithoutForce) {
  Make(2);
  ASSERT_TRUE(Delete("job").ok());
  EXPECT_TRUE(List(0)->empty());
}

TEST_F(DurableJobsTest, AJobIsListedUntilItIsDeletedEverywhere) {
  Make(2);
  Finish(2);
  cluster_->SetRule([](const std::string& call, uint32_t) {
    return call == "drop" ? absl::UnavailableError("down") : absl::OkStatus();
  });
  const absl::Status status = Delete("job");
  EXPECT_EQ(ReasonOf(status), Reason::kServerLost) << status;
  EXPECT_EQ(List(0)->size(), 1u);
  cluster_->SetRule(nullptr);
  EXPECT_TRUE(Delete("job").ok());
  EXPECT_TRUE(cluster_->Disk(1)->Paths().empty());
}

TEST_F(DurableJobsTest, AJobWithoutDurabilityIsNotDeleted) {
  cluster_ = std::make_unique<DurableDirectories>(1);
  AttachCall call = SeatCall(0, 100);
  call.spec.world = 1;
  call.spec.durability = Durability::kNone;
  ASSERT_TRUE(Ask(call).Get().ok());
  EXPECT_EQ(ReasonOf(Delete("job")), Reason::kUnsupported);
  EXPECT_TRUE(List(0)->empty());
}

}  // namespace
}  // namespace ballast::server
