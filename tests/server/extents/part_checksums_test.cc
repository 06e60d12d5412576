// PartChecksums against checksums of the bytes themselves.
#include "server/extents/part_checksums.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/bytes/crc32c.h"

namespace ballast::server {
namespace {

class PartChecksumsTest : public ::testing::Test {
 protected:
  void Write(size_t offset, const std::string& bytes) {
    memory_.replace(offset, bytes.size(), bytes);
    checksums_.Put(offset, bytes.size(), Crc32c(bytes.data(), bytes.size()));
  }
  std::string Random(size_t bytes) {
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(rng_());
    return text;
  }
  uint32_t Fresh(size_t bytes) const { return Crc32c(memory_.data(), bytes); }

  std::mt19937 rng_{7};
  std::string memory_ = std::string(4096, 'x');
  PartChecksums checksums_;
};

TEST_F(PartChecksumsTest, PartsInAnyOrderAreJoinedByTheirPlace) {
  Write(1000, Random(1));
  Write(0, Random(777));
  Write(1001, Random(512));
  EXPECT_EQ(checksums_.Whole(1513), std::nullopt) << "of a hole";
  Write(777, Random(223));
  EXPECT_EQ(checksums_.Whole(1513), Fresh(1513));
}

TEST_F(PartChecksumsTest, OnlyExactlyCoveredBytesAreKnown) {
  EXPECT_EQ(checksums_.Whole(1), std::nullopt);
  Write(0, Random(100));
  EXPECT_EQ(checksums_.Whole(100), Fresh(100));
  EXPECT_EQ(checksums_.Whole(99), std::nullopt);
  EXPECT_EQ(checksums_.Whole(101), std::nullopt);
}

TEST_F(PartChecksumsTest, ANewPartReplacesThatOfTheSamePlace) {
  Write(0, Random(100));
  Write(100, Random(100));
  Write(0, Random(100));
  EXPECT_EQ(checksums_.Whole(200), Fresh(200));
}

TEST_F(PartChecksumsTest, AnOverlapForgetsWhatItTouches) {
  Write(0, Random(100));
  Write(100, Random(100));
  Write(50, Random(100));
  EXPECT_EQ(checksums_.Whole(200), std::nullopt);
  Write(0, Random(50));
  Write(150, Random(50));
  EXPECT_EQ(checksums_.Whole(200), Fresh(200));
  Write(0, Random(300));
  EXPECT_EQ(checksums_.Whole(300), Fresh(300));
}

// Known means right: whatever is written where.
TEST_F(PartChecksumsTest, AKnownChecksumIsThatOfTheBytes) {
  size_t known = 0;
  for (int i = 0; i < 20'000; ++i) {
    const size_t offset = rng_() % 12;
    Write(offset, Random(1 + rng_() % (16 - offset)));
    for (size_t bytes = 1; bytes <= 16; ++bytes) {
      const std::optional<uint32_t> whole = checksums_.Whole(bytes);
      if (!whole.has_value()) continue;
      ASSERT_EQ(*whole, Fresh(bytes)) << i;
      ++known;
    }
  }
  EXPECT_GT(known, 1000u);
}

}  // namespace
}  // namespace ballast::server
