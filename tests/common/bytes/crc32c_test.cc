// Tests of common/bytes/crc32c.h against the vectors of RFC 3720 appendix B.4 and a bit-by-bit
// twin.
#include "common/bytes/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace ballast {
namespace {

uint32_t BitByBit(const unsigned char* data, size_t bytes, uint32_t seed) {
  uint32_t crc = ~seed;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

std::vector<unsigned char> RandomBytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> data(bytes);
  for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
  return data;
}

TEST(Crc32cTest, GivesTheStandardCheckValue) { EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u); }

TEST(Crc32cTest, GivesTheVectorsOfRfc3720) {
  std::array<unsigned char, 32> data{};
  EXPECT_EQ(Crc32c(data.data(), data.size()), 0x8A9136AAu);
  data.fill(0xFF);
  EXPECT_EQ(Crc32c(data.data(), data.size()), 0x62A8AB43u);
  std::iota(data.begin(), data.end(), static_cast<unsigned char>(0));
  EXPECT_EQ(Crc32c(data.data(), data.size()), 0x46DD794Eu);
  std::iota(data.rbegin(), data.rend(), static_cast<unsigned char>(0));
  EXPECT_EQ(Crc32c(data.data(), data.size()), 0x113FDB5Cu);
  const std::array<unsigned char, 48> read_command = {
      0x01, 0xC0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
      0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(Crc32c(read_command.data(), read_command.size()), 0xD9963A56u);
}

TEST(Crc32cTest, OfNothingIsTheSeed) {
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
  EXPECT_EQ(Crc32c(nullptr, 0, 0x12345678u), 0x12345678u);
}

TEST(Crc32cTest, ContinuesFromTheCrcOfTheBytesBefore) {
  const std::vector<unsigned char> data = RandomBytes(50000, 7);
  const uint32_t whole = Crc32c(data.data(), data.size());
  for (size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{768}, size_t{24576}, data.size()}) {
    const uint32_t first = Crc32c(data.data(), cut);
    EXPECT_EQ(Crc32c(data.data() + cut, data.size() - cut, first), whole) << "cut at " << cut;
  }
}

TEST(Crc32cTest, TablesEqualTheBitByBitTwin) {
  const std::vector<unsigned char> data = RandomBytes(200, 1);
  for (size_t bytes = 0; bytes <= 130; ++bytes) {
    for (size_t offset = 0; offset < 9; ++offset) {
      ASSERT_EQ(internal::Crc32cTable(data.data() + offset, bytes, 99),
                BitByBit(data.data() + offset, bytes, 99))
          << bytes << " bytes at offset " << offset;
    }
  }
}

TEST(Crc32cTest, HardwareEqualsTablesForAllLengthsAndAlignments) {
  if (!internal::Crc32cHardwareAvailable()) GTEST_SKIP() << "this CPU has no SSE4.2";
  const std::vector<unsigned char> data = RandomBytes(3 * 8192 * 3 + 64, 2);
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    // Half of them small, so that each of the three loops is the first one often.
    const size_t limit = i % 2 == 0 ? 2000 : data.size() - 16;
    const size_t bytes = random() % limit;
    const size_t offset = random() % 16;
    const uint32_t seed = static_cast<uint32_t>(random());
    ASSERT_EQ(internal::Crc32cHardware(data.data() + offset, bytes, seed),
              internal::Crc32cTable(data.data() + offset, bytes, seed))
        << bytes << " bytes at offset " << offset;
  }
  for (size_t bytes : {size_t{767}, size_t{768}, size_t{769}, size_t{24575}, size_t{24576},
                       size_t{24577}, size_t{49152}, data.size()}) {
    EXPECT_EQ(internal::Crc32cHardware(data.data(), bytes, 0),
              internal::Crc32cTable(data.data(), bytes, 0))
        << bytes;
  }
}

TEST(Crc32cTest, FoldingEqualsTablesForAllLengthsAndAlignments) {
  if (!internal::Crc32cFoldingAvailable()) GTEST_SKIP() << "this CPU has no VPCLMULQDQ";
  const std::vector<unsigned char> data = RandomBytes(70000, 4);
  std::mt19937 random(5);
  for (size_t i = 0; i < 3000; ++i) {
    const size_t bytes = i < 1500 ? i : random() % 69000;
    const size_t offset = random() % 200;
    const uint32_t seed = static_cast<uint32_t>(random());
    ASSERT_EQ(internal::Crc32cFolding(data.data() + offset, bytes, seed),
              internal::Crc32cTable(data.data() + offset, bytes, seed))
        << bytes << " bytes at offset " << offset;
  }
}

TEST(Crc32cTest, CopyGivesTheSameCrcAndExactlyTheBytes) {
  const std::vector<unsigned char> data = RandomBytes(70000, 6);
  std::mt19937 random(7);
  for (size_t i = 0; i < 2500; ++i) {
    const size_t bytes = i < 1500 ? i : random() % 69000;
    const size_t from = random() % 200;
    const size_t to = 1 + random() % 100;
    std::vector<unsigned char> copy(to + bytes + 1, 0xEE);
    ASSERT_EQ(Crc32cCopy(copy.data() + to, data.data() + from, bytes, 77),
              Crc32c(data.data() + from, bytes, 77))
        << bytes << " bytes from " << from << " to " << to;
    ASSERT_TRUE(std::equal(copy.begin() + static_cast<ptrdiff_t>(to), copy.end() - 1,
                           data.begin() + static_cast<ptrdiff_t>(from)));
    ASSERT_EQ(copy[to - 1], 0xEE);
    ASSERT_EQ(copy.back(), 0xEE);
  }
}

TEST(Crc32cTest, JoinOfTwoPartsIsThatOfBoth) {
  const std::vector<unsigned char> data = RandomBytes(140000, 8);
  std::mt19937 random(9);
  for (size_t i = 0; i < 2000; ++i) {
    const size_t front = i < 300 ? i % 20 : random() % 69000;
    const size_t back = i < 300 ? i / 20 : random() % 69000;
    const uint32_t seed = i % 2 == 0 ? 0 : static_cast<uint32_t>(random());
    ASSERT_EQ(Crc32cJoin(Crc32c(data.data(), front, seed), Crc32c(data.data() + front, back), back),
              Crc32c(data.data(), front + back, seed))
        << front << " bytes and " << back;
  }
}

TEST(Crc32cTest, JoinKnowsLengthsThatNoMemoryHas) {
  // As many zero bytes at once as in two halves: their checksums need no bytes.
  const size_t half = (size_t{1} << 62) + 12345;
  const uint32_t zeros_at_once = Crc32cJoin(0x12345678u, 0, 2 * half);
  EXPECT_EQ(Crc32cJoin(Crc32cJoin(0x12345678u, 0, half), 0, half), zeros_at_once);
}

}  // namespace
}  // namespace ballast
