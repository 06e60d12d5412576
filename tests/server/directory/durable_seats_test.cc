// Seats of durable jobs: which process gets one, also while the epoch changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/directory/durable_jobs_fixture.h"

namespace ballast::server {
namespace {

using testing::AttachAnswer;
using testing::DurableDirectories;
using testing::DurableJobsTest;
using ::testing::HasSubstr;
using testing::kFirst;
using testing::SeatCall;

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
  cluster_->Engine(0, job_)->trainers().SlotLost({1, sink.get(), "killed"});
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
  cluster_->Engine(0, job_)->trainers().SlotLost({1, sink.get(), "killed"});
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
  cluster_->At(0)->apis().trainers->AttachCancelled({.name = "job"}, 1, 5);
  Settle(0);
  cluster_->Engine(0, job_)->trainers().SlotLost({1, sink.get(), "killed"});
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

}  // namespace
}  // namespace ballast::server
