// Tests of server/durability/log/gradient_log.h on a disk in memory and on the machine's own files.
// Power loss is in log_crash_test.cc, damage in log_damage_test.cc.
#include "server/durability/log/gradient_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "common/faults/failpoint.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Operation = MemoryDisk::Operation;

class GradientLogTest : public ::testing::Test {
 protected:
  GradientLogTest() { EXPECT_TRUE(disk_.MakeDirectory(kLogDirectory).ok()); }

  void Create(const LogOptions& options = SmallLog()) {
    options_ = options;
    auto log = GradientLog::Create(&disk_, kLogDirectory, options);
    ASSERT_TRUE(log.ok()) << log.status();
    log_ = *std::move(log);
  }
  absl::Status Open(const LogOptions& options) {
    log_.reset();
    auto log = GradientLog::Open(&disk_, kLogDirectory, options);
    if (log.ok()) log_ = *std::move(log);
    return log.status();
  }
  void Reopen() {
    const absl::Status status = Open(options_);
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status Extent(uint64_t round, uint32_t extent, size_t bytes, uint32_t epoch = 1) {
    const TestExtent made = MakeExtent(round, extent, bytes, epoch);
    return log_->AppendExtent({.at = made.at, .data = made.data.data()});
  }
  // A whole round of extents 0 and 1.
  absl::Status Round(uint64_t round, size_t bytes) {
    for (const uint32_t extent : {0, 1}) {
      if (absl::Status status = Extent(round, extent, bytes); !status.ok()) return status;
    }
    absl::Status status = log_->AppendPrepared(MakePrepared(round, {0, 1}));
    if (status.ok()) status = log_->Sync();
    if (status.ok()) status = log_->AppendDecision(MakeDecision(round));
    return status;
  }
  void ExpectPayload(uint64_t round, uint32_t extent, size_t bytes, uint32_t epoch = 1) {
    const auto found = log_->rounds().find(round);
    ASSERT_NE(found, log_->rounds().end()) << round;
    ASSERT_EQ(found->second.extents.count(extent), 1u) << extent;
    const auto data = ReadBack(log_.get(), found->second.extents.at(extent));
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(*data, MakeExtent(round, extent, bytes, epoch).data);
  }

  MemoryDisk disk_;
  LogOptions options_;
  std::unique_ptr<GradientLog> log_;
};

TEST_F(GradientLogTest, AppendedRecordsAreReadAtOnceAndAfterARestart) {
  Create();
  EXPECT_TRUE(log_->rounds().empty());
  ASSERT_TRUE(Round(1, 5000).ok());
  ASSERT_TRUE(Extent(2, 1, 64).ok());
  for (int restarts = 0; restarts < 3; ++restarts) {
    ASSERT_EQ(log_->rounds().size(), 2u);
    const LoggedRound& first = log_->rounds().at(1);
    EXPECT_EQ(first.extents.size(), 2u);
    EXPECT_EQ(first.extents.at(1).dtype, DType::kBF16);
    EXPECT_EQ(first.extents.at(1).sumsq, 1.5);
    EXPECT_EQ(first.extents.at(1).nonfinite, 1u);
    EXPECT_EQ(first.extents.at(1).bytes, 5000u);
    EXPECT_EQ(EncodePrepared(*first.prepared), EncodePrepared(MakePrepared(1, {0, 1})));
    EXPECT_EQ(EncodeDecision(*first.decision), EncodeDecision(MakeDecision(1)));
    EXPECT_FALSE(log_->rounds().at(2).prepared.has_value());
    ExpectPayload(1, 0, 5000);
    ExpectPayload(1, 1, 5000);
    ExpectPayload(2, 1, 64);
    Reopen();
  }
}

TEST_F(GradientLogTest, AKnownChecksumGivesTheSameRecord) {
  for (const size_t bytes : {size_t{1}, size_t{777}, size_t{8192}}) {
    const TestExtent made = MakeExtent(1, 0, bytes);
    std::vector<uint32_t> stored;
    for (const bool known : {false, true}) {
      std::optional<uint32_t> crc;
      if (known) crc = Crc32c(made.data.data(), bytes);
      MemoryDisk disk;
      ASSERT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
      const auto log = GradientLog::Create(&disk, kLogDirectory, SmallLog());
      ASSERT_TRUE(log.ok()) << log.status();
      ASSERT_TRUE(
          (*log)->AppendExtent({.at = made.at, .data = made.data.data(), .data_crc = crc}).ok());
      const LoggedExtent& at = (*log)->rounds().at(1).extents.at(0);
      EXPECT_TRUE((*log)->Sync().ok());
      EXPECT_EQ(*ReadBack(log->get(), at), made.data);
      stored.push_back(at.crc32c);
    }
    EXPECT_EQ(stored[0], stored[1]) << bytes;
  }
}

// The checksum comes from where the bytes were last known to be right. Those that have changed
// since then are found by their reader, as those that change on the disk are.
TEST_F(GradientLogTest, BytesThatChangedBeforeTheyWereWrittenAreFound) {
  Create();
  TestExtent made = MakeExtent(1, 0, 5000);
  const uint32_t crc = Crc32c(made.data.data(), made.data.size());
  made.data[4321] ^= 1;
  ASSERT_TRUE(log_->AppendExtent({.at = made.at, .data = made.data.data(), .data_crc = crc}).ok());
  ASSERT_TRUE(log_->AppendPrepared(MakePrepared(1, {0})).ok());
  ASSERT_TRUE(log_->Sync().ok());
  ASSERT_TRUE(log_->AppendDecision(MakeDecision(1)).ok());
  ASSERT_TRUE(Round(2, 5000).ok());
  for (int restarts = 0; restarts < 2; ++restarts) {
    const absl::Status read = ReadBack(log_.get(), log_->rounds().at(1).extents.at(0)).status();
    EXPECT_TRUE(absl::IsDataLoss(read)) << read;
    EXPECT_THAT(std::string(read.message()), HasSubstr("extent 0 of round 1"));
    ExpectPayload(2, 0, 5000);
    Reopen();
  }
}

TEST_F(GradientLogTest, FilesHaveTheirFullSizeFromTheStart) {
  Create(SmallLog(6, 4));
  EXPECT_THAT(disk_.Paths(),
              ElementsAre("job/log-000", "job/log-001", "job/log-002", "job/log-003"));
  for (const std::string& path : disk_.Paths()) {
    auto file = disk_.Open(path, {.mode = OpenMode::kRead});
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(*(*file)->Size(), 6 * kPageBytes);
  }
  EXPECT_EQ(GradientLog::DiskBytes(options_), 24 * kPageBytes);
}

TEST_F(GradientLogTest, ANewLogSurvivesPowerLoss) {
  Create();
  // The directory's own name is its creator's business.
  ASSERT_TRUE(disk_.SyncDirectory(".").ok());
  disk_.Crash(kLoseAll);
  Reopen();
  EXPECT_TRUE(log_->rounds().empty());
}

TEST_F(GradientLogTest, PayloadsOfEverySizeAndAlignmentComeBack) {
  Create(SmallLog(1200));
  auto arena = Arena::Create(size_t{4} << 20);
  ASSERT_TRUE(arena.ok());
  const size_t bounce = (size_t{2} << 20) - 2 * kPageBytes;
  uint32_t extent = 0;
  std::vector<std::pair<size_t, size_t>> cases;  // bytes, misalignment
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{2}, size_t{4095}, size_t{4096},
                             size_t{4097}, size_t{12288}, size_t{100001}}) {
    for (const size_t off : {0, 1, 64, 4095}) cases.push_back({bytes, off});
  }
  for (const size_t bytes : {bounce - 1, bounce, bounce + 1, bounce + kPageBytes}) {
    for (const size_t off : {0, 2}) cases.push_back({bytes, off});
  }
  for (const auto& [bytes, off] : cases) {
    const TestExtent made = MakeExtent(1, extent, bytes);
    std::copy(made.data.begin(), made.data.end(), arena->data() + off);
    absl::Status status = log_->AppendExtent({.at = made.at, .data = arena->data() + off});
    if (absl::IsResourceExhausted(status)) break;
    ASSERT_TRUE(status.ok()) << status;
    ExpectPayload(1, extent, bytes);
    ++extent;
  }
  EXPECT_GT(extent, 30u);
  Reopen();
  for (uint32_t i = 0; i < extent; ++i) ExpectPayload(1, i, cases[i].first);
}

TEST_F(GradientLogTest, TheRingIsUsedAgainForManyLaps) {
  Create(SmallLog(20, 3));
  for (uint64_t round = 1; round <= 200; ++round) {
    ASSERT_TRUE(Round(round, 100 + round * 37 % 9000).ok()) << round;
    log_->TrimTo(round);
    if (round % 7 == 0) Reopen();
    log_->TrimTo(round);
    EXPECT_LE(log_->rounds().begin()->first, round);
    ExpectPayload(round, 0, 100 + round * 37 % 9000);
    ExpectPayload(round, 1, 100 + round * 37 % 9000);
  }
  EXPECT_EQ(disk_.Paths().size(), 3u);
}

TEST_F(GradientLogTest, AFullLogRefusesAndGoesOnAfterTrimTo) {
  Create(SmallLog(8, 3));
  uint64_t round = 1;
  absl::Status status;
  while ((status = Extent(round, 0, 3 * kPageBytes)).ok()) ++round;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("16384 bytes"), HasSubstr("round 1;")));
  EXPECT_EQ(round, 4u);  // One record of four pages in each segment of eight.
  const uint64_t free_before = log_->FreeBytes();
  const std::string before = Describe(log_->rounds());
  EXPECT_TRUE(absl::IsResourceExhausted(Extent(round, 0, 3 * kPageBytes)));
  EXPECT_EQ(Describe(log_->rounds()), before);
  EXPECT_EQ(log_->FreeBytes(), free_before);
  // What still fits is taken, and nothing of it is lost.
  ASSERT_TRUE(Extent(round, 1, 2 * kPageBytes).ok());
  log_->TrimTo(1);
  EXPECT_TRUE(absl::IsResourceExhausted(Extent(round, 0, 3 * kPageBytes)));
  log_->TrimTo(2);
  EXPECT_EQ(log_->FreeBytes(), 7 * kPageBytes);
  ASSERT_TRUE(Extent(round, 0, 3 * kPageBytes).ok());
  Reopen();
  ExpectPayload(2, 0, 3 * kPageBytes);
  ExpectPayload(3, 0, 3 * kPageBytes);
  ExpectPayload(4, 0, 3 * kPageBytes);
  ExpectPayload(4, 1, 2 * kPageBytes);
  EXPECT_EQ(log_->rounds().count(1), 0u);
}

TEST_F(GradientLogTest, ARecordLargerThanASegmentIsRefusedForGood) {
  Create(SmallLog(8, 3));
  const absl::Status status = Extent(1, 0, 7 * kPageBytes);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("32768"));
  EXPECT_TRUE(Extent(1, 0, 6 * kPageBytes).ok());
}

TEST_F(GradientLogTest, RestartAfterEachRecordContinuesThere) {
  std::vector<TestRecord> records;
  for (uint64_t round = 1; round <= 6; ++round) {
    records.push_back({.extent = MakeExtent(round, 0, 100)});
    records.push_back({.extent = MakeExtent(round, 1, 9000)});
    records.push_back({.prepared = MakePrepared(round, {0, 1})});
    records.push_back({.decision = MakeDecision(round)});
  }
  Create(SmallLog(10, 8));
  for (size_t i = 0; i < records.size(); ++i) {
    ASSERT_TRUE(Append(log_.get(), records[i]).ok()) << i;
    Reopen();
    ASSERT_EQ(Describe(log_->rounds()), Describe(Model(records, i + 1))) << i;
  }
}

// --- Which record may follow ---

TEST_F(GradientLogTest, ANewerEpochReplacesAnExtentAndUndoesThePrepare) {
  Create();
  ASSERT_TRUE(Extent(1, 0, 100).ok());
  ASSERT_TRUE(Extent(1, 1, 200).ok());
  ASSERT_TRUE(log_->AppendPrepared(MakePrepared(1, {0, 1})).ok());
  ASSERT_TRUE(Extent(1, 1, 300, /*epoch=*/2).ok());
  for (int restarts = 0; restarts < 2; ++restarts) {
    EXPECT_FALSE(log_->rounds().at(1).prepared.has_value());
    ExpectPayload(1, 0, 100, 1);
    ExpectPayload(1, 1, 300, 2);
    Reopen();
  }
  // Extents of both epochs make up the new vote.
  ASSERT_TRUE(log_->AppendPrepared(MakePrepared(1, {0, 1}, 2)).ok());
  EXPECT_EQ(log_->rounds().at(1).prepared->epoch, 2u);
}

TEST_F(GradientLogTest, ASecondRecordOfTheSameEpochIsRefusedAndTheFirstStays) {
  Create();
  ASSERT_TRUE(Extent(1, 0, 100, 3).ok());
  const std::string before = Describe(log_->rounds());
  const absl::Status again = Extent(1, 0, 200, 3);
  EXPECT_TRUE(absl::IsInternal(again));
  EXPECT_THAT(again.message(),
              AllOf(HasSubstr("extent 0 of round 1, epoch 3"), HasSubstr("logged in epoch 3")));
  EXPECT_TRUE(absl::IsInternal(Extent(1, 0, 200, 2)));
  EXPECT_EQ(Describe(log_->rounds()), before);
  EXPECT_TRUE(absl::IsInternal(log_->AppendPrepared(MakePrepared(1, {0}, 2))));
  ASSERT_TRUE(log_->AppendPrepared(MakePrepared(1, {0}, 3)).ok());
  EXPECT_TRUE(absl::IsInternal(log_->AppendPrepared(MakePrepared(1, {0}, 3))));
  EXPECT_TRUE(absl::IsInternal(Extent(1, 1, 200, 3)));
  ASSERT_TRUE(log_->AppendDecision(MakeDecision(1, 3)).ok());
  EXPECT_TRUE(absl::IsInternal(log_->AppendDecision(MakeDecision(1, 4))));
  EXPECT_TRUE(absl::IsInternal(Extent(1, 0, 200, 4)));
  EXPECT_TRUE(absl::IsInternal(log_->AppendPrepared(MakePrepared(1, {0}, 4))));
  // None of that did harm.
  ASSERT_TRUE(Extent(2, 0, 200, 3).ok());
  ASSERT_TRUE(log_->Sync().ok());
  Reopen();
  ExpectPayload(1, 0, 100, 3);
}

TEST_F(GradientLogTest, AVoteMayLackOnlyExtentsWhoseSquaresSumToZero) {
  Create();
  ASSERT_TRUE(Extent(1, 0, 100).ok());
  const absl::Status status = log_->AppendPrepared(MakePrepared(1, {0, 1}));
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(status.message(), HasSubstr("counts extent 1"));
  PreparedRecord record = MakePrepared(1, {0, 1});
  record.vote.norms[1].sumsq = 0;
  ASSERT_TRUE(log_->AppendPrepared(record).ok());
  Reopen();
  EXPECT_TRUE(log_->rounds().at(1).prepared.has_value());
}

TEST_F(GradientLogTest, AServerWithoutExtentsStillVotes) {
  Create();
  ASSERT_TRUE(log_->AppendPrepared(MakePrepared(1, {})).ok());
  ASSERT_TRUE(log_->Sync().ok());
  Reopen();
  EXPECT_TRUE(log_->rounds().at(1).prepared.has_value());
}

// --- Files of others ---

TEST_F(GradientLogTest, FilesOfAnotherJobOrServerAreRefusedByName) {
  Create();
  ASSERT_TRUE(Round(1, 100).ok());
  LogOptions other = options_;
  other.job = 78;
  EXPECT_TRUE(absl::IsDataLoss(Open(other)));
  EXPECT_THAT(Open(other).message(),
              AllOf(HasSubstr("job/log-000"), HasSubstr("job 000000000000004d, server 2"),
                    HasSubstr("job 000000000000004e, server 2")));
  other = options_;
  other.server = 3;
  EXPECT_TRUE(absl::IsDataLoss(Open(other)));
  Reopen();
  ExpectPayload(1, 0, 100);
}

TEST_F(GradientLogTest, OtherSizesThanTheFilesHaveAreRefusedByName) {
  Create(SmallLog(8, 3));
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(SmallLog(4, 3))));
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(SmallLog(9, 3))));
  EXPECT_THAT(Open(SmallLog(9, 3)).message(),
              AllOf(HasSubstr("3 segments of 32768"), HasSubstr("3 of 36864")));
  EXPECT_TRUE(absl::IsDataLoss(Open(SmallLog(8, 4))));  // log-003 is missing.
}

TEST_F(GradientLogTest, MissingShortAndExchangedFilesAreNamed) {
  EXPECT_TRUE(absl::IsNotFound(Open(SmallLog())));
  Create();
  for (uint64_t round = 1; round <= 2; ++round) ASSERT_TRUE(Round(round, 100).ok());
  log_.reset();
  ASSERT_TRUE(disk_.Rename("job/log-001", "job/kept").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open(options_)));
  EXPECT_THAT(Open(options_).message(), HasSubstr("lacks log-001"));
  ASSERT_TRUE(disk_.Rename("job/log-000", "job/log-001").ok());
  ASSERT_TRUE(disk_.Rename("job/kept", "job/log-000").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open(options_)));
  EXPECT_THAT(Open(options_).message(), HasSubstr("exchanged"));
  ASSERT_TRUE(disk_.Rename("job/log-000", "job/kept").ok());
  ASSERT_TRUE(disk_.Rename("job/log-001", "job/log-000").ok());
  ASSERT_TRUE(ReplaceFile(&disk_, "job/log-001", "short").ok());
  EXPECT_TRUE(absl::IsDataLoss(Open(options_)));
  EXPECT_THAT(Open(options_).message(), HasSubstr("job/log-001 ends at byte 5"));
}

TEST_F(GradientLogTest, ANewerFormatVersionIsRefused) {
  Create();
  log_.reset();
  std::string page(kPageBytes, '\0');
  EncodePage(SegmentHeader{.job = 77}, page.data());
  page[8] = 3;
  const uint32_t crc = Crc32c(page.data(), kPageBytes - 4);
  std::memcpy(page.data() + kPageBytes - 4, &crc, sizeof(crc));
  auto file = disk_.Open("job/log-000", {.mode = OpenMode::kWrite});
  ASSERT_TRUE((*file)->WriteAt(0, {ConstBytes{page.data(), kPageBytes}}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(options_)));
  EXPECT_THAT(Open(options_).message(), AllOf(HasSubstr("job/log-000"), HasSubstr("version 3")));
}

// --- Errors of the disk ---

TEST_F(GradientLogTest, CreateWithoutRoomNamesTheBytesAndChangesNothing) {
  disk_.SetCapacity(GradientLog::DiskBytes(SmallLog()) - 1);
  const absl::Status status = GradientLog::Create(&disk_, kLogDirectory, SmallLog()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("98304 bytes"), HasSubstr("98303")));
  EXPECT_THAT(disk_.Paths(), ElementsAre());
  disk_.SetCapacity(GradientLog::DiskBytes(SmallLog()));
  Create();
}

TEST_F(GradientLogTest, AFailedCreateLeavesNoFiles) {
  struct Case {
    Operation operation;
    int error;
  };
  for (const auto& [operation, error] :
       {Case{Operation::kAllocate, ENOSPC}, Case{Operation::kWrite, ENOSPC},
        Case{Operation::kSync, EIO}, Case{Operation::kOpen, EACCES}}) {
    // Three files; writes and flushes are one more for the first header, flushes for the directory.
    const bool once_per_file = operation == Operation::kAllocate || operation == Operation::kOpen;
    const uint64_t times = once_per_file ? 3 : operation == Operation::kWrite ? 4 : 5;
    for (uint64_t nth = 1; nth <= times; ++nth) {
      disk_.Fail(operation, nth, error);
      EXPECT_FALSE(GradientLog::Create(&disk_, kLogDirectory, SmallLog()).ok());
      EXPECT_THAT(disk_.Paths(), ElementsAre());
    }
  }
  Create();
}

TEST_F(GradientLogTest, CreateNeverTouchesALogThatIsThere) {
  Create();
  ASSERT_TRUE(Round(1, 100).ok());
  EXPECT_TRUE(
      absl::IsAlreadyExists(GradientLog::Create(&disk_, kLogDirectory, SmallLog()).status()));
  Reopen();
  ExpectPayload(1, 0, 100);
}

TEST_F(GradientLogTest, UnusableSizesAreRefused) {
  for (const LogOptions& options : {SmallLog(8, 2), SmallLog(2, 3), SmallLog(8, 1001)}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(GradientLog::Create(&disk_, kLogDirectory, options).status()));
  }
  LogOptions odd = SmallLog();
  odd.segment_bytes += 1;
  EXPECT_TRUE(absl::IsInvalidArgument(GradientLog::Create(&disk_, kLogDirectory, odd).status()));
}

TEST_F(GradientLogTest, AFailedFlushIsFinal) {
  Create();
  ASSERT_TRUE(Extent(1, 0, 100).ok());
  disk_.Fail(Operation::kSync, 1, EIO);
  const absl::Status failed = log_->Sync();
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_EQ(log_->Sync(), failed);
  EXPECT_EQ(Extent(1, 1, 100), failed);
  EXPECT_EQ(log_->AppendPrepared(MakePrepared(1, {0})), failed);
  EXPECT_EQ(log_->AppendDecision(MakeDecision(1)), failed);
  ExpectPayload(1, 0, 100);  // Reading continues.
}

TEST_F(GradientLogTest, AFailedWriteIsFinalAndDoesNotLookLikeAFullRing) {
  Create();
  disk_.Fail(Operation::kWrite, 1, ENOSPC);
  const absl::Status failed = Extent(1, 0, 100);
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_EQ(Extent(1, 0, 100), failed);
  EXPECT_EQ(log_->Sync(), failed);
  EXPECT_TRUE(log_->rounds().empty());
  Reopen();
  EXPECT_TRUE(Extent(1, 0, 100).ok());
}

TEST_F(GradientLogTest, AWriteThatGoesOnAfterTheAppendFailsBySyncAtTheLatest) {
  const auto arena = Arena::Create(size_t{1} << 20);
  ASSERT_TRUE(arena.ok());
  for (const bool append_again : {false, true}) {
    ASSERT_TRUE(disk_.RemoveAll(kLogDirectory).ok());
    ASSERT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    Create(SmallLog(1024, 4));
    LoggedExtent extent{.epoch = 1, .round = 1, .sumsq = 1, .bytes = size_t{1} << 20};
    disk_.Fail(Operation::kWrite, 1, EIO);
    ASSERT_TRUE(log_->AppendExtent({.at = extent, .data = arena->data()}).ok());
    extent.extent = 1;
    const absl::Status failed =
        append_again ? log_->AppendExtent({.at = extent, .data = arena->data()}) : log_->Sync();
    EXPECT_TRUE(absl::IsInternal(failed)) << failed;
    EXPECT_EQ(log_->Sync(), failed);
    log_.reset();
  }
}

TEST_F(GradientLogTest, AnErrorWhileASegmentBeginsIsFinal) {
  Create(SmallLog(4, 3));
  ASSERT_TRUE(Extent(1, 0, 2 * kPageBytes).ok());
  disk_.Fail(Operation::kSync, 1, EIO);
  const absl::Status failed = Extent(1, 1, 100);
  EXPECT_TRUE(absl::IsInternal(failed));
  EXPECT_EQ(Extent(1, 1, 100), failed);
}

TEST_F(GradientLogTest, FailpointsStandAroundWritesAndFlushes) {
  for (const char* name :
       {"log.before_append", "log.after_append", "log.before_sync", "log.after_sync"}) {
    ASSERT_TRUE(disk_.RemoveAll(kLogDirectory).ok());
    ASSERT_TRUE(disk_.MakeDirectory(kLogDirectory).ok());
    Create();
    ASSERT_TRUE(Failpoints::Configure(absl::StrCat(name, "=1*return(UNAVAILABLE)")).ok());
    absl::Status status = Extent(1, 0, 100);
    if (status.ok()) status = log_->Sync();
    EXPECT_TRUE(absl::IsUnavailable(status)) << name;
    EXPECT_EQ(log_->Sync(), status) << name;
    Failpoints::Reset();
  }
}

// --- The machine's own files ---

TEST(GradientLogOnFiles, RoundsComeBack) {
  const std::string directory =
      absl::StrCat(::testing::TempDir(), "/gradient_log_test.",
                   ::testing::UnitTest::GetInstance()->random_seed(), ".", getpid());
  std::filesystem::create_directories(directory);
  for (const bool flush : {true, false}) {
    for (const bool direct : {true, false}) {
      LogOptions options = SmallLog(64, 3);
      options.flush = flush;
      options.direct = direct;
      const std::string at = absl::StrCat(directory, "/", flush, direct);
      std::filesystem::create_directories(at);
      auto log = GradientLog::Create(PosixFileSystem(), at, options);
      ASSERT_TRUE(log.ok()) << log.status();
      std::vector<TestRecord> records;
      for (uint64_t round = 1; round <= 20; ++round) {
        records.push_back({.extent = MakeExtent(round, 0, 100 + round)});
        records.push_back({.extent = MakeExtent(round, 1, 9000 * (round % 5))});
        records.push_back({.prepared = MakePrepared(round, {0, 1})});
        records.push_back({.decision = MakeDecision(round)});
        (*log)->TrimTo(round);
        for (size_t i = records.size() - 4; i < records.size(); ++i) {
          ASSERT_TRUE(Append(log->get(), records[i]).ok());
        }
        ASSERT_TRUE((*log)->Sync().ok());
      }
      log = GradientLog::Open(PosixFileSystem(), at, options);
      ASSERT_TRUE(log.ok()) << log.status();
      EXPECT_EQ(Describe((*log)->rounds(), 20), Describe(Model(records, records.size()), 20));
      for (const auto& [number, extent] : (*log)->rounds().at(20).extents) {
        const auto data = ReadBack(log->get(), extent);
        ASSERT_TRUE(data.ok()) << data.status();
        EXPECT_EQ(*data, WrittenData(records, records.size(), extent));
      }
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace ballast::server
