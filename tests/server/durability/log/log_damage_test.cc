// Damage in a gradient log: every byte turned around, writes that were lost or went elsewhere. A
// log may refuse to open, end early where nothing was promised, or refuse a payload; it never
// answers with something that was not written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "server/durability/records/bytes.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Three rounds of two extents in the first lap of the ring, each in a segment of its own. A log
// that gets a secret later gets it with the last one, unless writes are lost.
class LogDamageTest : public ::testing::TestWithParam<LogForm> {
 protected:
  LogDamageTest() : options_(Options(GetParam().opened)) { Write(); }

  void Write() {
    disk_ = std::make_unique<MemoryDisk>();
    records_.clear();
    ASSERT_TRUE(disk_->MakeDirectory(kLogDirectory).ok());
    auto log = GradientLog::Create(disk_.get(), kLogDirectory, Options(GetParam().made));
    ASSERT_TRUE(log.ok());
    for (uint64_t round = 1; round <= 3; ++round) {
      if (round == 3 && lose_round_ == 0) {
        log->reset();
        log = Open();
        ASSERT_TRUE(log.ok()) << log.status();
      }
      for (const uint32_t extent : {0, 1}) {
        if (round == lose_round_ && extent == lose_extent_) disk_->LoseNextWrite();
        Take(log->get(), {.extent = MakeExtent(round, extent, extent == 0 ? 100 : 4500)});
      }
      Take(log->get(), {.prepared = MakePrepared(round, {0, 1})});
      ASSERT_TRUE((*log)->Sync().ok());
      if (round < 3) Take(log->get(), {.decision = MakeDecision(round)});
    }
  }
  static LogOptions Options(uint64_t secret) {
    LogOptions options = SmallLog(/*segment_pages=*/10, /*segments=*/4);
    options.secret = secret;
    return options;
  }
  void Take(GradientLog* log, TestRecord record) {
    ASSERT_TRUE(Append(log, record).ok());
    records_.push_back(std::move(record));
  }
  // Every byte with a meaning of its own, and every seventh of the bytes covered by a checksum
  // only. Detection of each single bit by the checksums is tested in log_format_test and
  // crc32c_test. The log that gets a secret later has headers of both versions: of the other logs a
  // sample is enough.
  static uint64_t FlipsEvery(uint64_t in_page) {
    if (GetParam().made != 0 || GetParam().opened == 0) return 31;
    return in_page < 136 || in_page >= kPageBytes - 4 ? 1 : 7;
  }
  absl::StatusOr<std::unique_ptr<GradientLog>> Open() {
    return GradientLog::Open(disk_.get(), kLogDirectory, options_);
  }

  const LogOptions options_;
  uint64_t lose_round_ = 0;
  uint32_t lose_extent_ = 0;
  std::unique_ptr<MemoryDisk> disk_;
  std::vector<TestRecord> records_;
};

INSTANTIATE_TEST_SUITE_P(Forms, LogDamageTest, ::testing::ValuesIn(kLogForms), NameOfForm);

// A copy of the disk's files.
std::unique_ptr<MemoryDisk> Copy(MemoryDisk* disk) {
  auto copy = std::make_unique<MemoryDisk>();
  EXPECT_TRUE(copy->MakeDirectory(kLogDirectory).ok());
  for (const std::string& path : disk->Paths()) {
    const auto content = ReadWholeFile(disk, path, size_t{1} << 20);
    EXPECT_TRUE(ReplaceFile(copy.get(), path, *content).ok());
  }
  return copy;
}

// The effect of a flip.
struct Outcome {
  bool refused = false;       // Open: DATA_LOSS
  size_t records = 0;         // else how many of the records are there
  bool lost_payload = false;  // and whether one of their payloads is refused
};

Outcome Try(MemoryDisk* disk, const LogOptions& options, const std::vector<TestRecord>& records) {
  Outcome outcome;
  auto log = GradientLog::Open(disk, kLogDirectory, options);
  if (!log.ok()) {
    EXPECT_TRUE(absl::IsDataLoss(log.status())) << log.status();
    EXPECT_THAT(log.status().message(), HasSubstr("job/log-00"));
    outcome.refused = true;
    return outcome;
  }
  const std::string found = Describe((*log)->rounds());
  size_t count = records.size();
  while (count > 0 && Describe(Model(records, count)) != found) --count;
  EXPECT_EQ(Describe(Model(records, count)), found);
  outcome.records = count;
  for (const auto& [round, logged] : (*log)->rounds()) {
    for (const auto& [number, extent] : logged.extents) {
      const auto data = ReadBack(log->get(), extent);
      if (data.ok()) {
        EXPECT_TRUE(*data == WrittenData(records, count, extent));
      } else {
        EXPECT_TRUE(absl::IsDataLoss(data.status()));
        EXPECT_THAT(data.status().message(),
                    HasSubstr(absl::StrCat("extent ", number, " of round ", round)));
        outcome.lost_payload = true;
      }
    }
  }
  return outcome;
}

TEST_P(LogDamageTest, AFlipOfAnyByteNeverGivesAWrongAnswer) {
  // The decision of round 2 says that all up to the PREPARED of round 2, record 7, was flushed. The
  // first extent of round 3 says the same; everything from the decision on may end early.
  const size_t promised = 7;
  size_t tried = 0, refused = 0, payloads = 0, early = 0, harmless = 0;
  std::mt19937_64 random(5);
  for (const std::string& path : disk_->Paths()) {
    for (uint64_t offset = 0; offset < options_.segment_bytes; ++offset) {
      if (offset % FlipsEvery(offset % kPageBytes) != 0) continue;
      ++tried;
      auto disk = Copy(disk_.get());
      ASSERT_TRUE(disk->FlipBit(path, offset, static_cast<int>(random() % 8)).ok());
      const Outcome outcome = Try(disk.get(), options_, records_);
      if (HasFailure()) FAIL() << path << " byte " << offset;
      if (outcome.refused) {
        ++refused;
        continue;
      }
      ASSERT_GE(outcome.records, promised) << path << " byte " << offset;
      if (outcome.lost_payload) {
        ++payloads;
      } else if (outcome.records < records_.size()) {
        ++early;
      } else {
        ++harmless;  // Padding and unused bytes.
      }
    }
  }
  // All of it happens often.
  EXPECT_GT(refused, tried / 30);
  EXPECT_GT(payloads, tried / 30);
  EXPECT_GT(early, tried / 60);
  EXPECT_GT(harmless, tried / 30);
}

TEST_P(LogDamageTest, DamageInFrontOfWhatWasFlushedNamesFileOffsetRoundAndWitness) {
  // The second record: extent 1 of round 1, after the segment's header and a record of two pages.
  ASSERT_TRUE(disk_->FlipBit("job/log-000", 3 * kPageBytes + 40, 0).ok());
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("job/log-000 at byte 12288"), HasSubstr("of round 1"),
                    HasSubstr("record 2 is missing"), HasSubstr("had been flushed")));
}

TEST_P(LogDamageTest, ADamagedVoteThatWasFlushedIsDataLoss) {
  // Record 3, PREPARED of round 1, at pages 6 and 7; its payload.
  ASSERT_TRUE(disk_->FlipBit("job/log-000", 7 * kPageBytes + 20, 0).ok());
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), AllOf(HasSubstr("job/log-000 at byte 24576, round 1"),
                                      HasSubstr("PREPARED record's checksum")));
}

// Found by the fuzz target log: the decision was dropped, and the log was refused a start later.
TEST_P(LogDamageTest, ASegmentWithoutRecordsSaysWhatWasFlushedInFrontOfIt) {
  const std::string zeros(9 * kPageBytes, '\0');
  auto file = disk_->Open("job/log-002", {.mode = OpenMode::kWrite});
  ASSERT_TRUE((*file)->WriteAt(kPageBytes, {ConstBytes{zeros.data(), zeros.size()}}).ok());
  EXPECT_EQ(Try(Copy(disk_.get()).get(), options_, records_).records, 8u);
  // The decision of round 2, the last record of segment 2, at pages 8 and 9; its payload.
  ASSERT_TRUE(disk_->FlipBit("job/log-001", 9 * kPageBytes + 20, 0).ok());
  EXPECT_TRUE(Try(disk_.get(), options_, records_).refused);
}

TEST_P(LogDamageTest, AHeaderOfASegmentInUseIsMissed) {
  for (const char* path : {"job/log-000", "job/log-001", "job/log-002"}) {
    auto disk = Copy(disk_.get());
    ASSERT_TRUE(disk->FlipBit(path, 40, 0).ok());
    EXPECT_TRUE(Try(disk.get(), options_, records_).refused) << path;
  }
}

// The write is acknowledged and never happens; the flush after it succeeds.
TEST_P(LogDamageTest, ALostWriteThatWasFlushedIsDataLoss) {
  for (lose_round_ = 1; lose_round_ <= 2; ++lose_round_) {
    for (lose_extent_ = 0; lose_extent_ < 2; ++lose_extent_) {
      Write();
      EXPECT_TRUE(Try(disk_.get(), options_, records_).refused);
    }
  }
  // The first write for round 3 is its segment's header, which every record in it bears witness to.
  lose_round_ = 3;
  lose_extent_ = 0;
  Write();
  EXPECT_TRUE(Try(disk_.get(), options_, records_).refused);
  // Nothing says that the end of round 3 was flushed: it looks like a tail that was not.
  lose_extent_ = 1;
  Write();
  EXPECT_EQ(Try(disk_.get(), options_, records_).records, 9u);
}

TEST_P(LogDamageTest, AMisdirectedWriteIsNeverTakenForWhatBelongsThere) {
  for (uint64_t page = 1; page < 9; ++page) {
    auto disk = Copy(disk_.get());
    auto log = GradientLog::Open(disk.get(), kLogDirectory, options_);
    ASSERT_TRUE(log.ok());
    std::vector<TestRecord> records = records_;
    records.push_back({.decision = MakeDecision(3)});
    disk->MisdirectNextWrite(page * kPageBytes);
    ASSERT_TRUE(Append(log->get(), records.back()).ok());
    ASSERT_TRUE((*log)->Sync().ok());
    log->reset();
    Try(disk.get(), options_, records);  // Its expectations are the test.
  }
}

// The one header whose damage cannot be told from a segment that was about to be used again: the
// log then begins later, and whoever needs the rounds in front finds them missing.
TEST(LogDamage, WithoutTheOldestHeaderOfAFullRingTheLogBeginsLater) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
  auto log = GradientLog::Create(&disk, kLogDirectory, SmallLog(8, 3));
  ASSERT_TRUE(log.ok());
  std::vector<TestRecord> records;
  for (uint64_t round = 1; round <= 3; ++round) {
    records.push_back({.extent = MakeExtent(round, 0, 5 * kPageBytes)});
    ASSERT_TRUE(Append(log->get(), records.back()).ok());
    ASSERT_TRUE((*log)->Sync().ok());
  }
  log->reset();
  ASSERT_TRUE(disk.FlipBit("job/log-000", 40, 0).ok());
  log = GradientLog::Open(&disk, kLogDirectory, SmallLog(8, 3));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(Describe((*log)->rounds()), Describe(Model(records, 3), 2));
}

TEST(LogDamage, OnlyTheNextRecordOfThisLogAtThisPlaceIsTaken) {
  const RecordHeader next{.type = RecordType::kExtent,
                          .dtype = DType::kF32,
                          .job = 77,
                          .server = 2,
                          .round = 1,
                          .generation = 1,
                          .lsn = 1,
                          .sequence = 1,
                          .offset = kPageBytes,
                          .secret = kLogSecret};
  const auto taken = [&](auto change) {
    MemoryDisk disk;
    EXPECT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
    EXPECT_TRUE(GradientLog::Create(&disk, kLogDirectory, SmallLog()).ok());
    RecordHeader header = next;
    header.payload_crc = PayloadSeed(header);
    change(&header);
    std::string page(kPageBytes, '\0');
    EncodePage(header, page.data());
    auto file = disk.Open("job/log-000", {.mode = OpenMode::kWrite});
    EXPECT_TRUE((*file)->WriteAt(kPageBytes, {ConstBytes{page.data(), page.size()}}).ok());
    const auto log = GradientLog::Open(&disk, kLogDirectory, SmallLog());
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() && !(*log)->rounds().empty();
  };
  EXPECT_TRUE(taken([](RecordHeader*) {}));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->job = 78; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->server = 3; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->generation = 0; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->lsn = 2; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->sequence = 4; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->offset = 2 * kPageBytes; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->previous_crc = 1; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->secret += 1; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->secret = 0; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->payload_bytes = 7 * kPageBytes; }));
  EXPECT_FALSE(taken([](RecordHeader* h) { h->payload_bytes = ~uint64_t{0}; }));
}

// Both found by the fuzz target log: such a log opened, took rounds, and did not have them when it
// was opened again.
absl::Status OpenWith(const std::string& page, uint64_t offset) {
  MemoryDisk disk;
  EXPECT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
  EXPECT_TRUE(GradientLog::Create(&disk, kLogDirectory, SmallLog()).ok());
  auto file = disk.Open("job/log-000", {.mode = OpenMode::kWrite});
  EXPECT_TRUE((*file)->WriteAt(offset, {ConstBytes{page.data(), page.size()}}).ok());
  return GradientLog::Open(&disk, kLogDirectory, SmallLog()).status();
}

TEST(LogDamage, NumbersWithoutASuccessorAreDamage) {
  const auto open_with = [](auto change) {
    const LogOptions options = SmallLog();
    SegmentHeader header{.job = options.job,
                         .server = options.server,
                         .segments = options.segments,
                         .segment_bytes = options.segment_bytes,
                         .generation = 1,
                         .sequence = 1,
                         .first_lsn = 1,
                         .secret = kLogSecret};
    change(&header);
    std::string page(kPageBytes, '\0');
    EncodePage(header, page.data());
    return OpenWith(page, 0);
  };
  EXPECT_TRUE(open_with([](SegmentHeader*) {}).ok());
  EXPECT_TRUE(open_with([](SegmentHeader* h) { h->generation = UINT32_MAX - 1; }).ok());
  const absl::Status status = open_with([](SegmentHeader* h) { h->generation = UINT32_MAX; });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("generation 4294967295"));
  EXPECT_TRUE(absl::IsDataLoss(open_with([](SegmentHeader* h) { h->first_lsn = ~uint64_t{0}; })));
}

// Found by the fuzz target log, as the two above.
TEST(LogDamage, SegmentsThatAreTooFarApartForTheRingAreDamage) {
  for (const uint64_t sequence : {1, 4, 7}) {
    const LogOptions options = SmallLog();
    std::string page(kPageBytes, '\0');
    EncodePage(SegmentHeader{.job = options.job,
                             .server = options.server,
                             .segments = options.segments,
                             .segment_bytes = options.segment_bytes,
                             .generation = 1,
                             .sequence = sequence,
                             .first_lsn = 1,
                             .secret = kLogSecret},
               page.data());
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
    ASSERT_TRUE(GradientLog::Create(&disk, kLogDirectory, options).ok());
    auto first = disk.Open("job/log-000", {.mode = OpenMode::kWrite});
    ASSERT_TRUE((*first)->WriteAt(0, {ConstBytes{page.data(), page.size()}}).ok());
    auto header = *DecodeSegmentPage(page.data());
    header.sequence = 5;
    EncodePage(header, page.data());
    auto second = disk.Open("job/log-001", {.mode = OpenMode::kWrite});
    ASSERT_TRUE((*second)->WriteAt(0, {ConstBytes{page.data(), page.size()}}).ok());
    const absl::Status status = GradientLog::Open(&disk, kLogDirectory, options).status();
    EXPECT_EQ(absl::IsDataLoss(status), sequence == 1) << sequence << status;
  }
}

// A whole page of version 3, as a record of SmallLog's first segment at `offset` after `change`.
template <typename Change>
std::string NewerPage(uint64_t offset, Change change) {
  const LogOptions options = SmallLog();
  RecordHeader header{.type = RecordType::kExtent,
                      .dtype = DType::kF32,
                      .job = options.job,
                      .server = options.server,
                      .sequence = 1,
                      .offset = offset,
                      .secret = kLogSecret};
  change(&header);
  std::string page(kPageBytes, '\0');
  EncodePage(header, page.data());
  page[8] = 3;
  StoreNumber(Crc32c(page.data(), kPageBytes - 4), page.data() + kPageBytes - 4);
  return page;
}

TEST(LogDamage, ARecordOfANewerVersionAfterTheEndIsRefused) {
  for (const uint64_t offset : {kPageBytes, 3 * kPageBytes}) {
    const absl::Status status = OpenWith(NewerPage(offset, [](RecordHeader*) {}), offset);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("job/log-000 at byte ", offset,
                                                         ": gradient log of format")));
  }
}

// A payload stands on whole pages, and its bytes are a trainer's.
TEST(LogDamage, APayloadThatLooksLikeANewerRecordOfAnotherPlaceIsPassedOver) {
  const auto open_with = [](auto change) {
    absl::Status status = OpenWith(NewerPage(kPageBytes, change), kPageBytes);
    if (status.ok()) status = OpenWith(NewerPage(3 * kPageBytes, change), 3 * kPageBytes);
    return status;
  };
  EXPECT_TRUE(open_with([](RecordHeader* h) { h->job += 1; }).ok());
  EXPECT_TRUE(open_with([](RecordHeader* h) { h->server += 1; }).ok());
  EXPECT_TRUE(open_with([](RecordHeader* h) { h->sequence += 1; }).ok());
  EXPECT_TRUE(open_with([](RecordHeader* h) { h->offset += kPageBytes; }).ok());
  EXPECT_TRUE(open_with([](RecordHeader* h) { h->secret += 1; }).ok());
}

// Headers whose checksums are right, and whose fields are random, but small enough to meet.
SegmentHeader RandomSegmentHeader(const LogOptions& options, uint32_t segment,
                                  std::mt19937_64* random) {
  std::mt19937_64& next = *random;
  return {.job = 77,
          .server = 2,
          .segments = options.segments,
          .segment_bytes = options.segment_bytes,
          .generation = static_cast<uint32_t>(next() % 3),
          .sequence = segment + 1 + 3 * (next() % 3),
          .first_lsn = next() % 6,
          .flushed_lsn = next() % 3,
          .previous_crc = 0};
}

RecordHeader RandomRecordHeader(bool extent, uint32_t segment, uint64_t offset,
                                std::mt19937_64* random) {
  std::mt19937_64& next = *random;
  return {.type = static_cast<RecordType>(extent ? 1 : 2 + next() % 2),
          .dtype = extent ? DType::kF32 : kNoDType,
          .job = 77,
          .server = 2,
          .round = next() % 4,
          .extent = extent ? static_cast<uint32_t>(next() % 3) : 0,
          .generation = static_cast<uint32_t>(next() % 3),
          .lsn = next() % 6,
          .sequence = segment + 1 + 3 * (next() % 3),
          .offset = offset,
          .flushed_lsn = next() % 4,
          .payload_bytes = next() % 3 == 0 ? next() : next() % 9000};
}

// A segment of such headers; one page in four is empty.
std::string RandomSegment(const LogOptions& options, uint32_t segment, std::mt19937_64* random) {
  std::string content(options.segment_bytes, '\0');
  for (uint64_t page = 0; page < options.segment_bytes / kPageBytes; ++page) {
    const uint64_t offset = page * kPageBytes;
    char* const at = content.data() + offset;
    const uint64_t small = (*random)() % 4;
    if (page == 0) {
      EncodePage(RandomSegmentHeader(options, segment, random), at);
    } else if (small != 0) {
      EncodePage(RandomRecordHeader(small != 1, segment, offset, random), at);
    }
  }
  return content;
}

TEST(LogDamage, RandomFilesNeverCrashTheReader) {
  std::mt19937_64 random(6);
  const LogOptions options = SmallLog(8, 3);
  for (int i = 0; i < 3000; ++i) {
    MemoryDisk disk;
    ASSERT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
    for (uint32_t segment = 0; segment < options.segments; ++segment) {
      const std::string content = RandomSegment(options, segment, &random);
      ASSERT_TRUE(
          ReplaceFile(&disk, absl::StrCat(kLogDirectory, "/", SegmentName(segment)), content).ok());
    }
    const auto log = GradientLog::Open(&disk, kLogDirectory, options);
    if (!log.ok()) {
      ASSERT_TRUE(absl::IsDataLoss(log.status())) << log.status();
    }
  }
}

}  // namespace
}  // namespace ballast::server
