// Tests of LAMB's record: its bytes, refusal of everything else, and its place in the log: between
// vote and decision, replaced with the vote, repeated with it, and missed when it is damaged.
#include "server/durability/records/ratios_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

RatiosRecord SmallRatios(uint64_t round = 41, uint32_t epoch = 2) {
  return {.epoch = epoch,
          .round = round,
          .ratios = {0.5f, 1.0f},
          .squares = {{.extent = 5, .tensor = 1, .p = 0.75, .u = 2.0}}};
}

// As docs/formats/log.md shows them.
const char kRatiosHex[] =
    "01000000"          // version
    "02000000"          // epoch
    "2900000000000000"  // round
    "02000000"          // two ratios
    "0000003f"
    "0000803f"
    "01000000"  // squares of one run
    "05000000"
    "01000000"
    "000000000000e83f"
    "0000000000000040";

TEST(RatiosRecordTest, HasTheseBytes) {
  const std::string bytes = EncodeRatios(SmallRatios());
  EXPECT_EQ(absl::BytesToHexString(bytes), kRatiosHex);
  const auto back = DecodeRatios(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ratios, SmallRatios().ratios);
  EXPECT_EQ(back->squares, SmallRatios().squares);
  EXPECT_EQ(back->round, 41u);
  EXPECT_EQ(back->epoch, 2u);
}

TEST(RatiosRecordTest, CutOffAnywhereOrLongerItIsRefused) {
  const std::string bytes = EncodeRatios(SmallRatios());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeRatios(bytes.substr(0, length)).status())) << length;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeRatios(bytes + '\0').status()));
}

TEST(RatiosRecordTest, AnotherVersionIsRefusedAndANewerOneByName) {
  std::string bytes = EncodeRatios(SmallRatios());
  bytes[0] = 2;
  const absl::Status newer = DecodeRatios(bytes).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(newer)) << newer;
  EXPECT_THAT(std::string(newer.message()), HasSubstr("RATIOS record of version 2"));
  bytes[0] = 0;
  EXPECT_TRUE(absl::IsDataLoss(DecodeRatios(bytes).status()));
}

TEST(RatiosRecordTest, ACountThatCannotBeTrueAllocatesNothing) {
  std::string bytes = EncodeRatios(SmallRatios());
  bytes.replace(16, 4, "\xff\xff\xff\xff");
  EXPECT_TRUE(absl::IsDataLoss(DecodeRatios(bytes).status()));
}

class RatiosInTheLog : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    auto log = GradientLog::Create(&disk_, kLogDirectory, SmallLog(64));
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  // One extent and the vote of a round.
  void Prepare(uint64_t round, uint32_t epoch = 1) {
    const TestExtent extent = MakeExtent(round, 0, 100, epoch);
    ASSERT_TRUE(log_->AppendExtent({.at = extent.at, .data = extent.data.data()}).ok());
    ASSERT_TRUE(log_->AppendPrepared(MakePrepared(round, {0}, epoch)).ok());
  }
  absl::Status Reopen(const LogOptions& options) {
    log_ = nullptr;
    auto log = GradientLog::Open(&disk_, kLogDirectory, options);
    if (log.ok()) log_ = *std::move(log);
    return log.status();
  }
  const LoggedRound& Round(uint64_t round) const { return log_->rounds().at(round); }

  MemoryDisk disk_;
  std::unique_ptr<GradientLog> log_;
};

TEST_F(RatiosInTheLog, StandBetweenVoteAndDecision) {
  EXPECT_TRUE(absl::IsInternal(log_->AppendRatios(SmallRatios(1, 1))));  // No vote yet.
  Prepare(1);
  EXPECT_TRUE(absl::IsInternal(log_->AppendRatios(SmallRatios(1, 2))));  // Of another epoch.
  ASSERT_TRUE(log_->AppendRatios(SmallRatios(1, 1)).ok());
  EXPECT_TRUE(absl::IsInternal(log_->AppendRatios(SmallRatios(1, 1))));  // Twice.
  ASSERT_TRUE(log_->AppendDecision(MakeDecision(1)).ok());
  Prepare(2);
  ASSERT_TRUE(log_->AppendDecision(MakeDecision(2)).ok());
  EXPECT_TRUE(absl::IsInternal(log_->AppendRatios(SmallRatios(2, 1))));  // Decided.
  ASSERT_TRUE(log_->Sync().ok());
  ASSERT_TRUE(Reopen(SmallLog(64)).ok());
  ASSERT_TRUE(Round(1).ratios.has_value());
  EXPECT_EQ(EncodeRatios(*Round(1).ratios), EncodeRatios(SmallRatios(1, 1)));
  EXPECT_FALSE(Round(2).ratios.has_value());
}

TEST_F(RatiosInTheLog, ThoseOfTheOpenRoundSurviveTheFlush) {
  Prepare(1);
  ASSERT_TRUE(log_->AppendRatios(SmallRatios(1, 1)).ok());
  ASSERT_TRUE(log_->Sync().ok());
  ASSERT_TRUE(disk_.SyncDirectory(".").ok());
  disk_.Crash(kLoseAll);
  const absl::Status reopened = Reopen(SmallLog(64));
  ASSERT_TRUE(reopened.ok()) << reopened;
  EXPECT_TRUE(Round(1).ratios.has_value());
  EXPECT_FALSE(Round(1).decision.has_value());
}

// Segment header, extent and vote take pages 0 to 4, the ratios pages 5 and 6.
TEST_F(RatiosInTheLog, AFlipInThemIsDataLossOnceALaterFlushProvesThem) {
  Prepare(1);
  ASSERT_TRUE(log_->AppendRatios(SmallRatios(1, 1)).ok());
  ASSERT_TRUE(log_->AppendDecision(MakeDecision(1)).ok());
  ASSERT_TRUE(log_->Sync().ok());
  Prepare(2);
  ASSERT_TRUE(log_->Sync().ok());
  const size_t bytes = EncodeRatios(SmallRatios(1, 1)).size();
  for (size_t at = 0; at < bytes; ++at) {
    ASSERT_TRUE(disk_.FlipBit("job/log-000", 6 * kPageBytes + at, at % 8).ok());
    const absl::Status status = Reopen(SmallLog(64));
    ASSERT_TRUE(absl::IsDataLoss(status)) << at << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("RATIOS record's checksum"));
    ASSERT_TRUE(disk_.FlipBit("job/log-000", 6 * kPageBytes + at, at % 8).ok());
  }
  ASSERT_TRUE(disk_.FlipBit("job/log-000", 5 * kPageBytes + 12, 0).ok());  // Its type.
  EXPECT_TRUE(absl::IsDataLoss(Reopen(SmallLog(64))));
}

TEST_F(RatiosInTheLog, GoWithTheVoteThatANewerEpochUndoes) {
  Prepare(1);
  ASSERT_TRUE(log_->AppendRatios(SmallRatios(1, 1)).ok());
  Prepare(1, 2);
  EXPECT_FALSE(Round(1).ratios.has_value());
  ASSERT_TRUE(log_->Sync().ok());
  LogOptions options = SmallLog(64);
  options.epoch = 2;
  options.start_round = 1;
  ASSERT_TRUE(Reopen(options).ok());
  EXPECT_TRUE(Round(1).prepared.has_value());
  EXPECT_FALSE(Round(1).ratios.has_value());
}

TEST_F(RatiosInTheLog, AreRepeatedWithTheVoteAndKeptWithIt) {
  Prepare(1);
  ASSERT_TRUE(log_->AppendRatios(SmallRatios(1, 1)).ok());
  ASSERT_TRUE(log_->AppendDecision(MakeDecision(1)).ok());
  // Lap after lap in a small ring: only the repeated records of round 1 are left.
  uint32_t epoch = 1;
  for (int lap = 0; lap < 200; ++lap) {
    ASSERT_TRUE(log_->Repeat(1).ok());
    ASSERT_TRUE(log_->Sync().ok());
    log_->BeginEpoch(++epoch, 2);
    log_->TrimTo(2);
    Prepare(2, epoch);
  }
  ASSERT_TRUE(log_->Sync().ok());
  LogOptions options = SmallLog(64);
  options.epoch = epoch;
  options.start_round = 2;
  const absl::Status reopened = Reopen(options);
  ASSERT_TRUE(reopened.ok()) << reopened;
  ASSERT_TRUE(Round(1).ratios.has_value());
  EXPECT_EQ(EncodeRatios(*Round(1).ratios), EncodeRatios(SmallRatios(1, 1)));
}

}  // namespace
}  // namespace ballast::server
