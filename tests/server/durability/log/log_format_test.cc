// Tests of server/durability/log/log_format.h: bytes of versions 1 and 2, and refusal of everything
// else.
#include "server/durability/log/log_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "common/bytes/crc32c.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;
using Page = std::array<char, kPageBytes>;

constexpr uint64_t kSecret = 0x1122334455667788;

SegmentHeader SmallSegment() {
  return {.job = 0x0123456789abcdef,
          .server = 2,
          .segments = 4,
          .segment_bytes = 0x10000000,
          .generation = 3,
          .sequence = 9,
          .first_lsn = 500,
          .flushed_lsn = 497,
          .previous_crc = 0xcafef00d};
}

RecordHeader SmallRecord() {
  return {.type = RecordType::kExtent,
          .dtype = DType::kBF16,
          .job = 0x0123456789abcdef,
          .server = 2,
          .epoch = 1,
          .round = 41,
          .extent = 7,
          .generation = 3,
          .lsn = 500,
          .sequence = 9,
          .offset = 4096,
          .flushed_lsn = 497,
          .payload_bytes = 4,
          .sumsq = 0.75,
          .nonfinite = 0,
          .payload_crc = 0xf6fe5ee1,
          .previous_crc = 0xcafef00d};
}

template <typename Header>
Page Encoded(const Header& header) {
  Page page;
  EncodePage(header, page.data());
  return page;
}

std::string Hex(const Page& page, size_t begin, size_t end) {
  return absl::BytesToHexString(absl::string_view(page.data() + begin, end - begin));
}

// Puts the checksum right after a change.
void Seal(Page* page) {
  const uint32_t crc = Crc32c(page->data(), kPageBytes - 4);
  std::memcpy(page->data() + kPageBytes - 4, &crc, sizeof(crc));
}

// As docs/formats/log.md shows them.
TEST(LogFormat, SegmentHeaderOfVersionOneStaysAsItIs) {
  const Page page = Encoded(SmallSegment());
  EXPECT_EQ(Hex(page, 0, 68),
            "42414c4c5345470a"  // BALLSEG\n
            "01000000"          // version
            "02000000"          // server
            "efcdab8967452301"  // job
            "0000001000000000"  // bytes of a segment
            "04000000"          // segments
            "03000000"          // generation
            "0900000000000000"  // sequence
            "f401000000000000"  // first LSN
            "f101000000000000"  // flushed LSN
            "0df0feca");        // checksum of the header in front
  EXPECT_EQ(Hex(page, 68, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 68), '0'));
  EXPECT_EQ(Hex(page, kPageBytes - 4, kPageBytes), "8fac0243");
}

TEST(LogFormat, RecordHeaderOfVersionOneStaysAsItIs) {
  const Page page = Encoded(SmallRecord());
  EXPECT_EQ(Hex(page, 0, 112),
            "42414c4c5245430a"  // BALLREC\n
            "01000000"          // version
            "01020000"          // EXTENT, bf16, no codec
            "efcdab8967452301"  // job
            "02000000"          // server
            "01000000"          // epoch
            "2900000000000000"  // round
            "07000000"          // extent
            "03000000"          // generation
            "f401000000000000"  // LSN
            "0900000000000000"  // sequence
            "0010000000000000"  // offset
            "f101000000000000"  // flushed LSN
            "0400000000000000"  // payload bytes
            "000000000000e83f"  // sum of squares
            "0000000000000000"  // non-finite elements
            "e15efef6"          // checksum of the payload
            "0df0feca");        // checksum of the header in front
  EXPECT_EQ(Hex(page, 112, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 112), '0'));
  EXPECT_EQ(Hex(page, kPageBytes - 4, kPageBytes), "3865ffae");
}

// Of version 2 only the version, the secret and the checksum differ.
TEST(LogFormat, HeadersOfVersionTwoStayAsTheyAre) {
  SegmentHeader segment = SmallSegment();
  segment.secret = kSecret;
  Page page = Encoded(segment);
  EXPECT_EQ(Hex(page, 0, 12), "42414c4c5345470a02000000");
  EXPECT_EQ(Hex(page, 12, 68), Hex(Encoded(SmallSegment()), 12, 68));
  EXPECT_EQ(Hex(page, 68, 76), "8877665544332211");
  EXPECT_EQ(Hex(page, 76, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 76), '0'));
  EXPECT_EQ(Hex(page, kPageBytes - 4, kPageBytes), "6975ecd3");
  RecordHeader record = SmallRecord();
  record.secret = kSecret;
  page = Encoded(record);
  EXPECT_EQ(Hex(page, 0, 12), "42414c4c5245430a02000000");
  EXPECT_EQ(Hex(page, 12, 128), Hex(Encoded(SmallRecord()), 12, 128));
  EXPECT_EQ(Hex(page, 128, 136), "8877665544332211");
  EXPECT_EQ(Hex(page, 136, kPageBytes - 4), std::string(2 * (kPageBytes - 4 - 136), '0'));
  EXPECT_EQ(Hex(page, kPageBytes - 4, kPageBytes), "15091fbd");
  EXPECT_EQ(PayloadSeed(record), PayloadSeed(SmallRecord()));
  EXPECT_EQ(PlaceOf(page.data()).secret, kSecret);
}

TEST(LogFormat, VersionAndSecretGoTogether) {
  const auto refused = [](uint64_t secret, char version) {
    SegmentHeader segment = SmallSegment();
    RecordHeader record = SmallRecord();
    segment.secret = record.secret = secret;
    Page page = Encoded(segment);
    page[8] = version;
    Seal(&page);
    const bool first = absl::IsDataLoss(DecodeSegmentPage(page.data()).status());
    page = Encoded(record);
    page[8] = version;
    Seal(&page);
    EXPECT_EQ(absl::IsDataLoss(DecodeRecordPage(page.data()).status()), first);
    return first;
  };
  EXPECT_FALSE(refused(0, 1));
  EXPECT_FALSE(refused(kSecret, 2));
  EXPECT_TRUE(refused(0, 2));
  EXPECT_TRUE(refused(kSecret, 1));
}

TEST(LogFormat, TheFirstNonfiniteElementFollowsTheChecksums) {
  RecordHeader header = SmallRecord();
  header.nonfinite = 1;
  header.first_nonfinite = {NonfiniteKind::kSum, header.extent, 0x01020304, 5, 0x7f7fffff};
  const Page page = Encoded(header);
  EXPECT_EQ(Hex(page, 112, 128), "020000000403020105000000ffff7f7f");
  const auto back = DecodeRecordPage(page.data());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->first_nonfinite, header.first_nonfinite);
}

TEST(LogFormat, PayloadChecksumStartsFromTheIdentity) {
  const std::string identity = absl::HexStringToBytes(
      "01000000"
      "01020000"
      "efcdab8967452301"
      "02000000"
      "01000000"
      "2900000000000000"
      "07000000");
  EXPECT_EQ(PayloadSeed(SmallRecord()), Crc32c(identity.data(), identity.size()));
  EXPECT_EQ(PayloadSeed(SmallRecord()), 0x321dd99du);
  EXPECT_EQ(Crc32c("abcd", 4, PayloadSeed(SmallRecord())), SmallRecord().payload_crc);
}

TEST(LogFormat, EncodedValuesDecodeToEqualOnes) {
  for (const uint64_t secret : {uint64_t{0}, kSecret}) {
    SegmentHeader header = SmallSegment();
    header.secret = secret;
    const auto segment = DecodeSegmentPage(Encoded(header).data());
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_EQ(segment->secret, secret);
    EXPECT_EQ(Encoded(*segment), Encoded(header));
  }
  for (const RecordType type :
       {RecordType::kExtent, RecordType::kPrepared, RecordType::kDecision}) {
    RecordHeader header = SmallRecord();
    header.type = type;
    header.secret = type == RecordType::kPrepared ? 0 : kSecret;
    if (type != RecordType::kExtent) {
      header.dtype = kNoDType;
      header.extent = 0;
      header.sumsq = 0;
    }
    const auto record = DecodeRecordPage(Encoded(header).data());
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(Encoded(*record), Encoded(header));
    EXPECT_EQ(record->type, type);
  }
}

TEST(LogFormat, ASingleChangedBitAnywhereIsDataLoss) {
  const Page segment = Encoded(SmallSegment());
  const Page record = Encoded(SmallRecord());
  for (size_t bit = 0; bit < 8 * kPageBytes; ++bit) {
    Page page = segment;
    page[bit / 8] = static_cast<char>(page[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeSegmentPage(page.data()).status())) << bit;
    page = record;
    page[bit / 8] = static_cast<char>(page[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeRecordPage(page.data()).status())) << bit;
  }
}

TEST(LogFormat, NewerVersionsAreRefusedByNumber) {
  Page page = Encoded(SmallSegment());
  page[8] = 3;
  Seal(&page);
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeSegmentPage(page.data()).status()));
  EXPECT_THAT(DecodeSegmentPage(page.data()).status().message(), HasSubstr("version 3"));
  page = Encoded(SmallRecord());
  page[8] = 3;
  Seal(&page);
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeRecordPage(page.data()).status()));
  page[8] = 0;
  Seal(&page);
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecordPage(page.data()).status()));
}

// Each of these has a right checksum, and still nobody can have written it.
TEST(LogFormat, CompleteButImpossibleHeadersAreDataLoss) {
  const auto refused = [](size_t at, char value) {
    Page page = Encoded(SmallRecord());
    page[at] = value;
    Seal(&page);
    return absl::IsDataLoss(DecodeRecordPage(page.data()).status());
  };
  EXPECT_TRUE(refused(12, 0));    // no type
  EXPECT_TRUE(refused(12, 4));    // unknown type
  EXPECT_TRUE(refused(12, 2));    // PREPARED with an extent
  EXPECT_TRUE(refused(13, 0));    // EXTENT without dtype
  EXPECT_TRUE(refused(13, 9));    // unknown dtype
  EXPECT_TRUE(refused(14, 1));    // unknown codec
  EXPECT_TRUE(refused(15, 1));    // reserved
  EXPECT_TRUE(refused(112, 4));   // unknown kind of place
  EXPECT_TRUE(refused(116, 1));   // a place of no kind
  EXPECT_TRUE(refused(128, 1));   // after the last field
  EXPECT_TRUE(refused(4091, 1));  // in front of the checksum
  EXPECT_FALSE(refused(32, 99));  // another round is fine
}

TEST(LogFormat, RandomBytesAreRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    Page page = i % 2 == 0 ? Encoded(SmallRecord()) : Encoded(SmallSegment());
    const size_t begin = random() % 200;
    for (size_t at = begin; at < begin + 1 + random() % 64; ++at) {
      page[at] = static_cast<char>(random());
    }
    if (random() % 2 == 0) Seal(&page);
    const auto record = DecodeRecordPage(page.data());
    if (record.ok()) {
      ASSERT_EQ(Encoded(*record), page);
    }
    const auto segment = DecodeSegmentPage(page.data());
    if (segment.ok()) {
      ASSERT_EQ(Encoded(*segment), page);
    }
  }
}

TEST(LogFormat, EveryFieldOfTheIdentityChangesTheSeed) {
  std::vector<uint32_t> seeds = {PayloadSeed(SmallRecord())};
  const auto with = [&](auto change) {
    RecordHeader header = SmallRecord();
    change(&header);
    seeds.push_back(PayloadSeed(header));
  };
  with([](RecordHeader* h) { h->job += 1; });
  with([](RecordHeader* h) { h->server += 1; });
  with([](RecordHeader* h) { h->epoch += 1; });
  with([](RecordHeader* h) { h->round += 1; });
  with([](RecordHeader* h) { h->extent += 1; });
  with([](RecordHeader* h) { h->dtype = DType::kF32; });
  with([](RecordHeader* h) { h->type = RecordType::kPrepared; });
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
}

}  // namespace
}  // namespace ballast::server
