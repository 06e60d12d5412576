// What a job's metrics say of its rounds and its trainers: each number moves with what it names,
// and with nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/server/answer.h"
#include "tests/server/round/durable_engines.h"

namespace ballast::server {
namespace {

using testing::Answer;
using testing::DurableCluster;
using testing::IncarnationOf;
using testing::Random;
using testing::RecordingSink;
using testing::Trainer;

class RoundMetrics : public ::testing::Test {
 protected:
  static constexpr int64_t kElements = 300;  // three extents

  RoundMetrics() : cluster_({kElements}, /*world=*/2, {0}, /*seed=*/1) {}

  void AttachAll() {
    for (const uint32_t slot : {0u, 1u}) {
      trainers_.push_back(std::make_unique<Trainer>(&cluster_, slot, Random({kElements}, 3)));
    }
  }
  // Both trainers begin the round; `extents` of each gradient are pushed.
  void Begin(float first_element, uint32_t extents) {
    std::vector<std::vector<float>> grads = Random({kElements}, 4);
    grads[0][0] = first_element;
    for (auto& trainer : trainers_) trainer->BeginRound(grads);
    for (auto& trainer : trainers_) {
      for (uint32_t extent = 0; extent < extents; ++extent) trainer->PushExtent(extent);
    }
  }
  void RunRound(float first_element) {
    Begin(first_element, 3);
    for (auto& trainer : trainers_) trainer->EndRound();
  }
  // What was posted to the job before has happened.
  void Settle() {
    Answer<JobStatus> status;
    cluster_.Engine(0)->Status(status.Setter());
    status.Get();
  }
  void ExpectRounds(uint64_t committed, uint64_t skipped, uint64_t halted, uint64_t aborted) {
    const JobMetrics& metrics = cluster_.metrics();
    EXPECT_EQ(metrics.rounds_committed.value(), committed);
    EXPECT_EQ(metrics.rounds_skipped_overflow.value(), skipped);
    EXPECT_EQ(metrics.rounds_halted.value(), halted);
    EXPECT_EQ(metrics.rounds_aborted.value(), aborted);
  }
  void ExpectTrainers(double active, double unresponsive, double left) {
    Settle();
    EXPECT_EQ(cluster_.metrics().trainers_active.value(), active);
    EXPECT_EQ(cluster_.metrics().trainers_unresponsive.value(), unresponsive);
    EXPECT_EQ(cluster_.metrics().trainers_left.value(), left);
  }
  std::vector<FinishedRound> History() {
    Answer<JobStatus> status;
    cluster_.Engine(0)->Status(status.Setter());
    return status.Get().rounds;
  }
  double CommitTime() { return cluster_.metrics().last_round_commit_timestamp_s.value(); }

  DurableCluster cluster_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

TEST(RoundHistory, ForgetsTheOldestRounds) {
  RoundHistory history;
  EXPECT_TRUE(history.All().empty());
  for (uint64_t round = 1; round <= kRoundsKept + 3; ++round) history.Add({.round = round});
  const std::vector<FinishedRound> all = history.All();
  ASSERT_EQ(all.size(), kRoundsKept);
  EXPECT_EQ(all.front().round, 4u);
  EXPECT_EQ(all.back().round, kRoundsKept + 3);
}

TEST_F(RoundMetrics, TheHistorySaysHowEachRoundEndedAndWhichTrainerWasLast) {
  AttachAll();
  EXPECT_TRUE(History().empty());
  RunRound(1);
  RunRound(NAN);
  const std::vector<FinishedRound> rounds = History();
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].round, 1u);
  EXPECT_EQ(rounds[0].end, RoundEnd::kCommitted);
  EXPECT_GT(rounds[0].grad_norm, 0);
  EXPECT_EQ(rounds[0].pushed_bytes, 2 * kElements * sizeof(float));
  EXPECT_EQ(rounds[0].last_slot, 1) << "slot 1 pushes after slot 0";
  EXPECT_EQ(rounds[1].round, 2u);
  EXPECT_EQ(rounds[1].end, RoundEnd::kSkipped);
  EXPECT_EQ(rounds[1].pushed_bytes, 2 * kElements * sizeof(float));
}

TEST_F(RoundMetrics, ARoundCountsAsItWasDecidedAndOnlyACommittedOneMovesTheTime) {
  AttachAll();
  RunRound(NAN);
  ExpectRounds(0, 1, 0, 0);
  EXPECT_EQ(CommitTime(), 0);
  RunRound(1);
  ExpectRounds(1, 1, 0, 0);
  const double committed_at = CommitTime();
  EXPECT_GT(committed_at, 0);
  RunRound(INFINITY);
  RunRound(INFINITY);
  ExpectRounds(1, 2, 1, 0);
  EXPECT_EQ(CommitTime(), committed_at);
}

TEST_F(RoundMetrics, ARoundThatIsBegunAndNeverDecidedIsAborted) {
  AttachAll();
  RunRound(1);
  cluster_.ChangeEpoch(1);
  ExpectRounds(1, 0, 0, 0);
  for (auto& trainer : trainers_) trainer->Attach(0);
  Begin(1, 2);
  Settle();
  cluster_.ChangeEpoch(1);
  ExpectRounds(1, 0, 0, 1);
  for (auto& trainer : trainers_) trainer->Attach(0);
  for (auto& trainer : trainers_) trainer->PushExtent(2);
  for (auto& trainer : trainers_) trainer->EndRound();
  ExpectRounds(2, 0, 0, 1);
  Begin(1, 1);
  cluster_.Engine(0)->Fail(absl::UnavailableError("the test ends it"));
  Settle();
  ExpectRounds(2, 0, 0, 2);
}

TEST_F(RoundMetrics, AJobThatEndsBetweenRoundsAbortsNone) {
  AttachAll();
  RunRound(1);
  cluster_.Engine(0)->Fail(absl::UnavailableError("the test ends it"));
  Settle();
  ExpectRounds(1, 0, 0, 0);
}

TEST_F(RoundMetrics, TrainersAreCountedByWhatIsKnownOfThem) {
  ExpectTrainers(0, 2, 0);
  AttachAll();
  ExpectTrainers(2, 0, 0);
  cluster_.ChangeEpoch(1);
  ExpectTrainers(0, 2, 0);
  for (auto& trainer : trainers_) trainer->Attach(0);
  ExpectTrainers(2, 0, 0);

  const auto sink = std::make_shared<RecordingSink>(3);
  Answer<absl::StatusOr<SlotWelcome>> welcome;
  cluster_.Engine(0)->AttachSlot({.slot = 0, .incarnation = IncarnationOf(0), .epoch = 2}, sink,
                                 welcome.Setter());
  ASSERT_TRUE(welcome.Get().ok());
  cluster_.Engine(0)->SlotLost(0, sink.get(), "its connection broke");
  ExpectTrainers(1, 1, 0);
  cluster_.Engine(0)->Leave(1, cluster_.plan().epoch.members[1].incarnation);
  ExpectTrainers(0, 1, 1);
  cluster_.Engine(0)->Fail(absl::UnavailableError("the test ends it"));
  ExpectTrainers(0, 0, 1);
}

}  // namespace
}  // namespace ballast::server
