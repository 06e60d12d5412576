// Payloads that look like headers. A trainer chooses every byte of its gradient, which stands on
// whole pages of the log, knows where it will stand, and can form every checksum. Against a log
// without a secret each of these attacks succeeds, which shows that the attack is a good one;
// against a log with one they must succeed only where the trainer knows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/bytes/crc32c.h"
#include "tests/server/durability/log/log_testing.h"

namespace ballast::server {
namespace {

// Segment 1 to 3 hold a round each, 16 pages of payload from page 2 on. Segment 4, in the file of
// segment 1, holds round 4 up to its vote and ends at page 8.
constexpr uint64_t kPayloadAt = 2 * kPageBytes;
constexpr size_t kPayloadPages = 16;
constexpr uint64_t kEndAt = 8 * kPageBytes;
constexpr uint64_t kRounds = 4;

LogOptions RingLog(uint64_t secret) {
  LogOptions options = SmallLog(/*segment_pages=*/24, /*segments=*/3);
  options.secret = secret;
  return options;
}

// A trainer's payloads by round.
using Payloads = std::vector<std::string>;

Payloads PlainPayloads() {
  Payloads payloads(kRounds + 1, std::string(kPayloadPages * kPageBytes, '\0'));
  payloads[kRounds].resize(4 * kPageBytes);
  return payloads;
}

// Puts pages where they come to stand at `offset` of the file of round 1.
void Plant(const std::string& pages, uint64_t offset, Payloads* payloads) {
  (*payloads)[1].replace(offset - kPayloadAt, pages.size(), pages);
}

// A log of the rounds with these payloads that was closed in order.
std::unique_ptr<MemoryDisk> WriteRounds(const LogOptions& options, const Payloads& payloads,
                                        uint64_t rounds = kRounds) {
  auto disk = std::make_unique<MemoryDisk>();
  EXPECT_TRUE(disk->MakeDirectory(kLogDirectory).ok());
  auto log = GradientLog::Create(disk.get(), kLogDirectory, options);
  EXPECT_TRUE(log.ok()) << log.status();
  for (uint64_t round = 1; round <= rounds; ++round) {
    (*log)->TrimTo(round);
    TestExtent extent = MakeExtent(round, 0, payloads[round].size());
    EXPECT_TRUE((*log)->AppendExtent({.at = extent.at, .data = payloads[round].data()}).ok());
    EXPECT_TRUE((*log)->AppendPrepared(MakePrepared(round, {0})).ok());
    EXPECT_TRUE((*log)->Sync().ok());
    if (round == kRounds) break;
    EXPECT_TRUE((*log)->AppendDecision(MakeDecision(round)).ok());
  }
  EXPECT_TRUE((*log)->Sync().ok());
  return disk;
}

absl::StatusOr<std::unique_ptr<GradientLog>> Open(MemoryDisk* disk, uint64_t secret) {
  return GradientLog::Open(disk, kLogDirectory, RingLog(secret));
}

std::string PageOf(MemoryDisk* disk, const std::string& path, uint64_t offset) {
  return ReadWholeFile(disk, path, size_t{1} << 20)->substr(offset, kPageBytes);
}

// A header as it would have to stand at `offset` of segment 4, by a trainer that takes `guess` for
// the secret.
RecordHeader Forged(uint64_t offset, uint64_t guess) {
  return {.type = RecordType::kDecision,
          .job = 77,
          .server = 2,
          .epoch = 1,
          .round = kRounds,
          .generation = 1,
          .lsn = 12,
          .sequence = 4,
          .offset = offset,
          .secret = guess};
}

std::string PageOf(const RecordHeader& header) {
  std::string page(kPageBytes, '\0');
  EncodePage(header, page.data());
  return page;
}

// The result of opening a log when a trainer plants `page` after its end.
absl::Status OpenBehindEnd(const std::string& page, uint64_t secret) {
  Payloads payloads = PlainPayloads();
  Plant(page, kEndAt + 2 * kPageBytes, &payloads);
  const auto disk = WriteRounds(RingLog(secret), payloads);
  const auto log = Open(disk.get(), secret);
  if (log.ok()) {
    const auto plain = WriteRounds(RingLog(secret), PlainPayloads());
    EXPECT_EQ(Describe((*log)->rounds()), Describe((*Open(plain.get(), secret))->rounds()));
  }
  return log.status();
}

struct Guess {
  uint64_t guess;
  uint64_t secret;
  bool right() const { return guess == secret; }
};
constexpr Guess kGuesses[] = {{0, 0}, {0, 0x5ec7e7}, {0x5ec7e8, 0x5ec7e7}, {0x5ec7e7, 0x5ec7e7}};

TEST(LogForgery, APayloadProvesNoFlush) {
  for (const Guess& at : kGuesses) {
    RecordHeader header = Forged(kEndAt + 2 * kPageBytes, at.guess);
    header.flushed_lsn = 1000;
    const absl::Status status = OpenBehindEnd(PageOf(header), at.secret);
    EXPECT_EQ(absl::IsDataLoss(status), at.right()) << status;
    EXPECT_EQ(status.ok(), !at.right()) << status;
  }
}

TEST(LogForgery, APayloadEndsNoNumbers) {
  for (const Guess& at : kGuesses) {
    RecordHeader header = Forged(kEndAt + 2 * kPageBytes, at.guess);
    header.generation = UINT32_MAX;
    const absl::Status status = OpenBehindEnd(PageOf(header), at.secret);
    EXPECT_EQ(absl::IsDataLoss(status), at.right()) << status;
    EXPECT_EQ(status.ok(), !at.right()) << status;
  }
}

TEST(LogForgery, APayloadIsNoRecordOfANewerVersion) {
  for (const Guess& at : kGuesses) {
    std::string page = PageOf(Forged(kEndAt + 2 * kPageBytes, at.guess));
    page[8] = 3;
    const uint32_t crc = Crc32c(page.data(), kPageBytes - 4);
    std::memcpy(&page[kPageBytes - 4], &crc, sizeof(crc));
    const absl::Status status = OpenBehindEnd(page, at.secret);
    // A segment of version 1 has no such records, whatever its pages say.
    const bool taken = at.right() && at.secret != 0;
    EXPECT_EQ(absl::IsFailedPrecondition(status), taken) << status;
    EXPECT_EQ(status.ok(), !taken) << status;
  }
}

// Power is lost while the header of segment 4 is written: the file still holds round 1.
TEST(LogForgery, APayloadAfterATornHeaderIsNoRecord) {
  for (const Guess& at : kGuesses) {
    Payloads payloads = PlainPayloads();
    Plant(PageOf(Forged(kPayloadAt, at.guess)), kPayloadAt, &payloads);
    const auto disk = WriteRounds(RingLog(at.secret), payloads, /*rounds=*/3);
    ASSERT_TRUE(disk->FlipBit("job/log-000", 40, 0).ok());
    const auto log = Open(disk.get(), at.secret);
    // With no secret known it is not known which one is right.
    const bool taken = at.secret == 0 || at.right();
    EXPECT_EQ(absl::IsDataLoss(log.status()), taken) << log.status();
    if (!log.ok()) continue;
    EXPECT_EQ((*log)->rounds().begin()->first, 2u);
    EXPECT_EQ((*log)->rounds().rbegin()->first, 3u);
  }
}

// A trainer that knows the bytes in front also has the checksum that the next record must carry.

// The header page of the log's last record: the vote of round 4.
std::string LastHeader(MemoryDisk* disk) { return PageOf(disk, "job/log-000", 6 * kPageBytes); }

// The decision of round 4 that the trainer would like, after the record with this header.
std::string ForgedDecision(const std::string& last_header, uint64_t guess) {
  DecisionRecord record = MakeDecision(kRounds);
  record.decision.grad_norm = 666;
  std::string payload = EncodeDecision(record);
  RecordHeader header = Forged(kEndAt, guess);
  const auto last = DecodeRecordPage(last_header.data());
  EXPECT_TRUE(last.ok()) << last.status();
  header.lsn = last->lsn + 1;
  header.payload_bytes = payload.size();
  header.payload_crc = Crc32c(payload.data(), payload.size(), PayloadSeed(header));
  header.previous_crc = PageCrc(last_header.data());
  payload.resize(kPageBytes);
  return PageOf(header) + payload;
}

// The four bytes x for which `crc_with` is `wanted`; it is a sum, without carry, of a constant and
// the contribution of each bit of x.
uint32_t Solve(const std::function<uint32_t(uint32_t)>& crc_with, uint32_t wanted) {
  const uint32_t constant = crc_with(0);
  uint32_t rest = wanted ^ constant, x = 0;
  std::vector<std::pair<uint32_t, uint32_t>>
      rows;  // contribution and its bits; leading bits differ
  for (int bit = 0; bit < 32; ++bit) {
    std::pair<uint32_t, uint32_t> row{crc_with(1u << bit) ^ constant, 1u << bit};
    for (const auto& [brings, bits] : rows) {
      if ((row.first ^ brings) < row.first) row = {row.first ^ brings, row.second ^ bits};
    }
    rows.push_back(row);
    std::sort(rows.rbegin(), rows.rend());
  }
  for (const auto& [brings, bits] : rows) {
    if ((rest ^ brings) < rest) rest ^= brings, x ^= bits;
  }
  EXPECT_EQ(crc_with(x), wanted);
  return x;
}

// Plants `pages` at the log's end, and changes the end of the payload of round 3 so that all
// headers after it are the same as without.
Payloads PlantAtEnd(const LogOptions& model, const std::string& pages) {
  const auto plain = WriteRounds(model, PlainPayloads());
  Payloads payloads = PlainPayloads();
  Plant(pages, kEndAt, &payloads);
  const auto planted = WriteRounds(model, payloads);
  const std::string wanted = PageOf(plain.get(), "job/log-002", kPageBytes);
  RecordHeader header = *DecodeRecordPage(PageOf(planted.get(), "job/log-002", kPageBytes).data());
  std::string& last = payloads[3];
  const uint32_t start = Crc32c(last.data(), last.size() - 4, PayloadSeed(header));
  const auto crc_with = [&](uint32_t x) {
    header.payload_crc = Crc32c(&x, sizeof(x), start);
    std::string page(kPageBytes, '\0');
    return EncodePage(header, page.data());
  };
  const uint32_t x = Solve(crc_with, PageCrc(wanted.data()));
  std::memcpy(&last[last.size() - 4], &x, sizeof(x));
  return payloads;
}

TEST(LogForgery, APayloadIsNoDecision) {
  for (const Guess& at : kGuesses) {
    const LogOptions model = RingLog(at.guess);
    const std::string last_header = LastHeader(WriteRounds(model, PlainPayloads()).get());
    const Payloads payloads = PlantAtEnd(model, ForgedDecision(last_header, at.guess));
    // The attack is a good one: in the trainer's own copy of the log nothing else has changed.
    ASSERT_EQ(LastHeader(WriteRounds(model, payloads).get()), last_header);

    const auto disk = WriteRounds(RingLog(at.secret), payloads);
    const auto log = Open(disk.get(), at.secret);
    ASSERT_TRUE(log.ok()) << log.status();
    const LoggedRound& round = (*log)->rounds().at(kRounds);
    EXPECT_TRUE(round.prepared.has_value());
    EXPECT_EQ(round.decision.has_value(), at.right()) << at.guess << " for " << at.secret;
    if (round.decision.has_value()) {
      EXPECT_EQ(round.decision->decision.grad_norm, 666);
    }
  }
}

// Old logs.

uint8_t VersionAt(MemoryDisk* disk, const std::string& path, uint64_t offset) {
  return static_cast<uint8_t>(PageOf(disk, path, offset)[8]);
}

TEST(LogForgery, AnOldLogGetsASecretWithItsNextSegment) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory(kLogDirectory).ok());
  LogOptions options = SmallLog(/*segment_pages=*/10, /*segments=*/4);
  options.secret = 0;
  std::vector<TestRecord> records;
  auto log = GradientLog::Create(&disk, kLogDirectory, options);
  for (uint64_t round = 1; round <= 12; ++round) {
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->TrimTo(round < 2 ? round : round - 1);
    for (TestRecord& record : std::vector<TestRecord>{{.extent = MakeExtent(round, 0, 4500)},
                                                      {.prepared = MakePrepared(round, {0})},
                                                      {.decision = MakeDecision(round)}}) {
      ASSERT_TRUE(Append(log->get(), record).ok()) << round;
      records.push_back(std::move(record));
    }
    ASSERT_TRUE((*log)->Sync().ok());
    // A program that knows secrets comes after round 1, and draws another one at each start.
    options.secret = 100 + round;
    log->reset();
    log = GradientLog::Open(&disk, kLogDirectory, options);
    ASSERT_TRUE(log.ok()) << log.status();
    const uint64_t from = (*log)->rounds().begin()->first;
    EXPECT_LE(from, round < 2 ? round : round - 1);
    EXPECT_EQ(Describe((*log)->rounds()), Describe(Model(records, records.size()), from));
    const TestExtent& extent = *records[records.size() - 3].extent;
    EXPECT_EQ(*ReadBack(log->get(), (*log)->rounds().at(round).extents.at(0)), extent.data);
    if (round == 2) {
      EXPECT_EQ(VersionAt(&disk, "job/log-000", 0), 1);
      EXPECT_EQ(VersionAt(&disk, "job/log-001", 0), 2);
    }
  }
  for (const char* path : {"job/log-000", "job/log-001", "job/log-002", "job/log-003"}) {
    const auto header = DecodeSegmentPage(PageOf(&disk, path, 0).data());
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->secret, 101u) << path << ": the first one drawn, and no later one";
    EXPECT_EQ(DecodeRecordPage(PageOf(&disk, path, kPageBytes).data())->secret, 101u);
  }
}

}  // namespace
}  // namespace ballast::server
