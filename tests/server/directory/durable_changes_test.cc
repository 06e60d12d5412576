// Changes of epoch of durable jobs that fail, repeat, or meet servers that are started again: all
// servers hold one record per epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/faults/failpoint.h"
#include "tests/server/directory/durable_jobs_fixture.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::AttachAnswer;
using testing::DurableDirectories;
using testing::DurableJobsTest;
using testing::kFirst;

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

// Two changes of epoch 1 overlap. A late answer to the first, which may have wanted another world,
// does not complete the second. While its record is being written there is one newcomer more.
TEST_F(DurableJobsTest, ALateAnswerToAChangeThatWasGivenUpCompletesNoOther) {
  Make(3);
  cluster_->Keep("seal", 2);
  cluster_->SetRule([](const std::string& call, uint32_t server) {
    return call == "seal" && server == 1 ? absl::UnavailableError("away") : absl::OkStatus();
  });
  EXPECT_FALSE(Ask(1, 900).Get().ok());
  cluster_->SetRule(nullptr);
  AttachAnswer one = Ask(1, 900);
  cluster_->WaitForKept(2);
  cluster_->Release();  // The seal of the first change.
  Settle(2);
  EXPECT_TRUE(Seal(2, 1).ok());  // Comes after it.
  Settle(0);
  EXPECT_EQ(cluster_->Record(0, job_).epoch.epoch, 1u);
  ASSERT_TRUE(Failpoints::Configure("log.before_sync=pause").ok());
  cluster_->Release();
  Failpoints::WaitForPause("log.before_sync");  // The home is about to adopt.
  AttachAnswer zero = Ask(0, 901);
  SettleSeats();
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
  cluster_->At(0)->apis().shares->ExtendJob(unknown, [&](const absl::Status&) { before.Pass(); });
  cluster_->At(0)->apis().shares->Seal({.job = job_, .epoch = 1},
                                       [&](const auto&) { at_answer.Pass(); });
  cluster_->At(0)->apis().shares->Seal({.job = job_, .epoch = 1}, repeated.Setter());
  before.Open();
  at_answer.WaitUntilReached();
  JobPlan next = plan;
  next.epoch.epoch = 2;
  Answer<absl::Status> adopted;
  engine->changes().Adopt({next, engine->window_extents(),
                           [&] { return testing::MakeStore(cluster_->Disk(0))->Save(next); },
                           adopted.Setter()});
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

}  // namespace
}  // namespace ballast::server
