// Durable jobs that ended: their rest, their list, and their end for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tests/server/directory/durable_jobs_fixture.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::DurableDirectories;
using testing::DurableJobsTest;
using ::testing::HasSubstr;
using testing::kFirst;
using testing::SeatCall;

// --- Jobs that ended ----------------------------------------------------------------------------

TEST_F(DurableJobsTest, AFinishedJobRestsOnDiskUntilItIsGoneOnWith) {
  for (const bool restart : {false, true}) {
    Make(2);
    Finish(2);
    if (restart) {
      for (const uint32_t id : {0u, 1u}) cluster_->Restart(id);
      EXPECT_EQ(cluster_->At(0)->apis().jobs->Load().memory_used_bytes, 0u);
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

TEST_F(DurableJobsTest, AJobWithoutAnyStreamRestsAtAllServersAndIsGoneOnWith) {
  constexpr std::chrono::milliseconds kTtl{50};
  Make(2, {.job_ttl = kTtl, .lease = kTtl});
  for (const uint32_t id : {0u, 1u}) {
    while (cluster_->Engine(id, job_) != nullptr) cluster_->PassTime(id, kTtl);
    EXPECT_TRUE(cluster_->Record(id, job_).resting) << "server " << id;
  }
  const auto again = AttachWorld(900);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->plan.job, job_);
  Answer<absl::StatusOr<SlotWelcome>> welcome;
  cluster_->Engine(0, job_)->trainers().AttachSlot(
      {.slot = 0, .incarnation = 900, .epoch = again->plan.epoch.epoch},
      std::make_shared<testing::RecordingSink>(16), welcome.Setter());
  ASSERT_TRUE(welcome.Get().ok()) << welcome.Get().status();
  EXPECT_FALSE(welcome.Get()->init_missing.empty()) << "the first weights are still to come";
}

// Trainers that are away do not end it.
TEST_F(DurableJobsTest, AJobThatHadAStreamIsNotEndedForWantOfOne) {
  Make(1);
  const std::shared_ptr<RoundEngine> engine = cluster_->Engine(0, job_);
  engine->trainers().SlotLost({0, OpenStream(0, 0, kFirst).get(), "gone"});
  engine->FailUnopened(absl::AbortedError("no trainer came"));
  SettleSeats();
  EXPECT_FALSE(cluster_->Record(0, job_).resting);
}

TEST_F(DurableJobsTest, AServerThatStartsWithTooSmallABudgetServesItsJobsAndTakesNoNewOnes) {
  Make(1);
  const uint64_t used = cluster_->At(0)->apis().jobs->Load().memory_used_bytes;
  cluster_->SetMemory({used / 2}, used);
  cluster_->Restart(0);
  EXPECT_GT(cluster_->At(0)->apis().jobs->Load().memory_used_bytes, used / 2);
  EXPECT_NE(cluster_->Engine(0, job_), nullptr);
  AttachCall call = SeatCall(0, 900);
  call.spec.name = "another";
  call.spec.world = 1;
  EXPECT_EQ(ReasonOf(Ask(call).Get().status()), Reason::kOverBudget);
  EXPECT_TRUE(AttachWorld(900).ok()) << "trainers take their seats again";
}

TEST_F(DurableJobsTest, AFinishedJobIsNotGoneOnWithUnderAnotherSpec) {
  Make(1);
  Finish(1);
  AttachCall call = SeatCall(0, 900);
  call.spec.max_grad_norm = 3;
  EXPECT_EQ(ReasonOf(Ask(call).Get().status()), Reason::kSpecMismatch);
  EXPECT_TRUE(AttachWorld(900).ok());
}

TEST_F(DurableJobsTest, ANameThatIsRefusedTodayIsReadWhereAnEarlierVersionTookIt) {
  const std::string name = "weight\u009b2J";
  Make(1);
  Finish(1);
  JobPlan record = cluster_->Record(0, job_);
  record.spec.tensors[0].name = name;
  ASSERT_TRUE(testing::MakeStore(cluster_->Disk(0))->Save(record).ok());
  cluster_->Restart(0);
  for (const char* job : {"another", "job"}) {
    AttachCall zero = SeatCall(0, 900), one = SeatCall(1, 901);
    zero.spec.name = one.spec.name = job;
    zero.spec.tensors[0].name = one.spec.tensors[0].name = name;
    testing::AttachAnswer first = Ask(zero), second = Ask(one);
    const bool is_new = job == std::string("another");
    EXPECT_EQ(ReasonOf(second.Get().status()), is_new ? Reason::kBadSpec : Reason::kUnspecified);
    EXPECT_EQ(first.Get().ok(), !is_new) << first.Get().status();
  }
}

TEST_F(DurableJobsTest, AJobThatCannotBeOpenedLeavesNoSeries) {
  Make(1);
  EXPECT_TRUE(cluster_->HasSeries(0, "job"));
  Finish(1);
  // A record of rounds that the log does not have.
  JobPlan plan = cluster_->Record(0, job_);
  ++plan.epoch.epoch;
  plan.epoch.start_round = 5;
  ASSERT_TRUE(testing::MakeStore(cluster_->Disk(0))->Save(plan).ok());
  const absl::Status lost = AttachWorld(900).status();
  EXPECT_EQ(ReasonOf(lost), Reason::kStateLost) << lost;
  EXPECT_FALSE(cluster_->HasSeries(0, "job"));
}

TEST_F(DurableJobsTest, AJobThatAPeerCannotOpenEndsAtTheHomeBeforeItsFilesAreOpenedAgain) {
  Make(2);
  Finish(2);
  JobPlan plan = cluster_->Record(1, job_);
  ++plan.epoch.epoch;
  plan.epoch.start_round = 5;
  ASSERT_TRUE(testing::MakeStore(cluster_->Disk(1))->Save(plan).ok());
  cluster_->Keep("create", 1);
  testing::AttachAnswer asked = Ask(0, 900);
  cluster_->WaitForKept(1);
  const std::shared_ptr<RoundEngine> woken = cluster_->Engine(0, job_);
  cluster_->KeepNoMore();
  cluster_->Release();
  EXPECT_EQ(ReasonOf(asked.Get().status()), Reason::kStateLost);
  Settle(0);
  Answer<JobStatus> status;
  woken->Status(status.Setter());
  EXPECT_EQ(status.Get().state, "failed");
  Settle(0);
  EXPECT_EQ(cluster_->Engine(0, job_), nullptr);
  EXPECT_TRUE(cluster_->Record(0, job_).resting);
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
  cluster_->At(0)->apis().shares->Seal({.job = job_ + 1, .epoch = 1}, sealed.Setter());
  EXPECT_EQ(ReasonOf(sealed.Get().status()), Reason::kUnknownJob);
  JobPlan plan = cluster_->Record(0, job_);
  ++plan.job;
  Answer<absl::Status> adopted;
  cluster_->At(0)->apis().shares->AdoptEpoch(plan, adopted.Setter());
  EXPECT_EQ(ReasonOf(adopted.Get()), Reason::kUnknownJob);
}

// --- Operators' requests ------------------------------------------------------------------------

TEST_F(DurableJobsTest, RunningAndRestingJobsAreListedAtTheHomeOnly) {
  Make(2);
  OpenStream(0, 1, kFirst + 1);
  absl::StatusOr<DurableJobs> jobs = List(0);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().name, "job");
  EXPECT_EQ(jobs->front().state, "running");
  EXPECT_EQ(jobs->front().epoch, 1u);
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

// Where in the deletion at the home the disk fails differs: before the job's directory has its last
// name, when that is flushed, and when its files go.
TEST_F(DurableJobsTest, AJobWhoseFilesCannotBeRemovedKeepsItsNameUntilTheyAre) {
  using Operation = MemoryDisk::Operation;
  const std::pair<Operation, uint64_t> faults[] = {{Operation::kRename, 1},
                                                   {Operation::kSync, 1},
                                                   {Operation::kRemove, 1},
                                                   {Operation::kRemove, 2}};
  for (const auto& [operation, nth] : faults) {
    SCOPED_TRACE(absl::StrCat("operation ", static_cast<int>(operation), " ", nth));
    Make(2);
    Finish(2);
    cluster_->Disk(0)->Fail(operation, nth, EIO);
    const absl::Status failed = Delete("job");
    EXPECT_EQ(ReasonOf(failed), Reason::kStorageFailed) << failed;
    EXPECT_FALSE(cluster_->Disk(0)->Paths().empty());
    ASSERT_EQ(List(0)->size(), 1u);
    EXPECT_EQ(ReasonOf(Ask(0, 900, Resume::kNever).Get().status()), Reason::kNameInUse);
    const absl::Status again = Delete("job");
    EXPECT_TRUE(again.ok()) << again;
    EXPECT_TRUE(cluster_->Disk(0)->Paths().empty());
    EXPECT_TRUE(List(0)->empty());
    EXPECT_EQ(ReasonOf(Delete("job")), Reason::kUnknownJob);
  }
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
