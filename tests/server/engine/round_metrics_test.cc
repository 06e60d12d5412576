// A job's metrics of its rounds and its trainers: each number moves with the thing that it names,
// and with nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes/crc32c.h"
#include "server/engine/round_meter.h"
#include "tests/server/answer.h"
#include "tests/server/engine/durable_engines.h"

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
  // The first frame of slot 0's first extent, filled with `byte`; `damage` changes its checksum.
  void Send(char byte, uint32_t damage = 0) {
    const ChunkRange range = ChunkRanges(cluster_.layout(), 0, testing::kChunk, {}).front();
    FrameHeader header = testing::MakeFrame(cluster_.plan(), FrameKind::kGradient, 0,
                                            trainers_[0]->round(), 0, range);
    header.epoch = cluster_.plan().epoch.epoch;
    header.incarnation = cluster_.plan().epoch.members[0].incarnation;
    const std::string payload(range.length_bytes, byte);
    header.crc32c = Crc32c(payload.data(), payload.size(), IdentityCrc(header)) + damage;
    cluster_.Engine(0)->Frame(header, Payload::FromString(payload));
  }
  // Earlier tasks of the job have run.
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

TEST_F(RoundMetrics, AfterARestartTheTimeOfTheLastRoundCountsFromTheRestart) {
  const auto restart = [this] {
    cluster_.Shut(0);
    cluster_.server_metrics()->RemoveJob(cluster_.plan().name());
    cluster_.Restart(0, [] { return uint64_t{0}; });
    Settle();
  };
  restart();
  EXPECT_EQ(CommitTime(), 0) << "no round has ended";
  AttachAll();
  RunRound(1);
  restart();
  ExpectRounds(0, 0, 0, 0);
  EXPECT_GT(CommitTime(), 1.6e9);
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
  cluster_.Engine(0)->trainers().AttachSlot(
      {.slot = 0, .incarnation = IncarnationOf(0), .epoch = 2}, sink, welcome.Setter());
  ASSERT_TRUE(welcome.Get().ok());
  cluster_.Engine(0)->trainers().SlotLost({0, sink.get(), "its connection broke"});
  ExpectTrainers(1, 1, 0);
  cluster_.Engine(0)->trainers().Leave(1, cluster_.plan().epoch.members[1].incarnation);
  ExpectTrainers(0, 1, 1);
  cluster_.Engine(0)->Fail(absl::UnavailableError("the test ends it"));
  ExpectTrainers(0, 0, 1);
}

TEST_F(RoundMetrics, ThePhaseOfTheOpenRoundIsShown) {
  const auto expect = [this](OpenPhase phase) {
    Settle();
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(cluster_.metrics().open_phase[i].value(), i == static_cast<size_t>(phase)) << i;
    }
  };
  AttachAll();
  expect(OpenPhase::kIdle);
  RunRound(1);
  expect(OpenPhase::kIdle);
  Begin(1, 2);
  expect(OpenPhase::kCollect);
  cluster_.Engine(0)->Fail(absl::UnavailableError("the test ends it"));
  expect(OpenPhase::kIdle);
}

TEST_F(RoundMetrics, TheLogTellsWhatItTakesAndWhatOneFlushCovers) {
  AttachAll();
  ServerMetrics* const server = cluster_.server_metrics();
  RunRound(1);
  Settle();
  const uint64_t flushes = server->log_flush()->Read().count;
  const uint64_t appends = server->log_append()->Read().count;
  EXPECT_GE(flushes, 1u);
  EXPECT_GE(appends, 4u);  // Three extents and a PREPARE.
  EXPECT_GE(cluster_.metrics().log_bytes.value(), kElements * sizeof(float));
  EXPECT_GT(cluster_.metrics().log_free_bytes.value(), 0);
  EXPECT_EQ(cluster_.metrics().loss_scale.value(), 1);
  RunRound(1);
  Settle();
  EXPECT_GT(server->log_flush()->Read().count, flushes);
  EXPECT_GT(server->log_append()->Read().count, appends);
}

TEST_F(RoundMetrics, ImagesAreCountedAsTheyAreWritten) {
  AttachAll();
  for (int round = 0; round < 4; ++round) RunRound(1);
  cluster_.Shut(0);  // After everything that was to be written.
  EXPECT_GE(cluster_.metrics().image_writes.value(), 3u);
  EXPECT_GE(cluster_.metrics().image_write_bytes.value(), 3 * kElements * sizeof(float));
  EXPECT_EQ(cluster_.server_metrics()->image_io(ImageOp::kWrite)->Read().count,
            cluster_.metrics().image_writes.value());
}

TEST_F(RoundMetrics, ARestartCountsTheRoundsThatItAppliesAgain) {
  AttachAll();
  for (int round = 0; round < 3; ++round) RunRound(1);
  Settle();
  ServerMetrics* const server = cluster_.server_metrics();
  EXPECT_EQ(server->recovery_replayed_rounds()->value(), 0u);
  cluster_.Restart(0, [] { return uint64_t{0}; });
  EXPECT_GT(server->recovery_replayed_rounds()->value(), 0u);
  EXPECT_GT(server->image_io(ImageOp::kRead)->Read().count, 0u);
}

TEST_F(RoundMetrics, FramesThatAreRefusedAreCountedByReason) {
  AttachAll();
  Begin(1, 0);
  Send('a');
  Settle();
  ServerMetrics* const server = cluster_.server_metrics();
  EXPECT_EQ(server->frames_rejected(Reason::kDuplicate)->value(), 0u);
  Send('a');
  Send('b');
  Send('c', /*damage=*/1);
  Settle();
  EXPECT_EQ(server->push_duplicates()->value(), 1u);
  EXPECT_EQ(server->push_conflicts()->value(), 1u);
  EXPECT_EQ(server->checksum_errors("push")->value(), 1u);
  for (const Reason reason : {Reason::kDuplicate, Reason::kConflict, Reason::kBadChecksum}) {
    EXPECT_EQ(server->frames_rejected(reason)->value(), 1u) << ReasonName(reason);
  }
}

TEST(RoundMeterTest, EachPhaseIsEnteredInItsTurn) {
  ServerMetrics metrics{BuildInfo()};
  RoundMeter meter(RealClock::Get(), &metrics, {.name = "gpt"});
  const auto expect = [&](OpenPhase phase) {
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(meter.job()->open_phase[i].value(), i == static_cast<size_t>(phase)) << i;
    }
  };
  expect(OpenPhase::kIdle);
  meter.Begin();
  expect(OpenPhase::kCollect);
  meter.TakeBack();
  expect(OpenPhase::kIdle);
  meter.Begin();
  meter.Prepare();
  expect(OpenPhase::kVote);
  Decision decision;
  decision.policy.loss_scale = 512;
  meter.Decide(decision);
  expect(OpenPhase::kStep);
  EXPECT_EQ(meter.job()->loss_scale.value(), 512);
  meter.Step(true);
  meter.End(1);
  expect(OpenPhase::kIdle);
  meter.Resume();
  expect(OpenPhase::kVote);
  meter.GiveUp();
  expect(OpenPhase::kIdle);
}

// Handles are resolved when the job is made, so a scrape or a flood of series never stands in the
// way of a round.
TEST_F(RoundMetrics, ARoundLooksNothingUp) {
  AttachAll();
  RunRound(1);
  Settle();
  const uint64_t lookups = cluster_.server_metrics()->lookups();
  for (int round = 0; round < 3; ++round) RunRound(1);
  RunRound(NAN);
  Settle();
  EXPECT_EQ(cluster_.server_metrics()->lookups(), lookups);
}

}  // namespace
}  // namespace ballast::server
