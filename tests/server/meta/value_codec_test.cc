// The stored form of values: golden bytes of version 1, and the refusals.
#include "server/meta/value_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "common/bytes/crc32c.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;

// The example of docs/formats/meta.md: key server/3, value abcd, created at 5, written at 7.
const MetaEntry kExample{"server/3", "abcd", 5, 7};
constexpr char kExampleHex[] =
    "424c4d56"          // magic
    "7bc96622"          // crc32c
    "0100"              // version
    "0000"              // flags
    "04000000"          // value bytes
    "0500000000000000"  // create_revision
    "0700000000000000"  // mod_revision
    "61626364";         // value

// Writes the checksum anew after a change, as a writer of another version would.
std::string Resealed(const std::string& key, std::string stored) {
  std::string covered(4, '\0');
  covered[0] = static_cast<char>(key.size());
  covered += key + stored.substr(8);
  const uint32_t crc = Crc32c(covered.data(), covered.size());
  for (int i = 0; i < 4; ++i) stored[4 + i] = static_cast<char>(crc >> (8 * i));
  return stored;
}

TEST(MetaValueCodec, BytesOfVersionOneStayAsTheyAre) {
  EXPECT_EQ(absl::BytesToHexString(EncodeMetaValue(kExample)), kExampleHex);
  const auto entry = DecodeMetaValue("server/3", absl::HexStringToBytes(kExampleHex));
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ(*entry, kExample);
}

TEST(MetaValueCodec, EveryCutIsDataLossThatNamesTheKey) {
  const std::string stored = EncodeMetaValue(kExample);
  for (size_t bytes = 0; bytes < stored.size(); ++bytes) {
    const auto entry = DecodeMetaValue("server/3", absl::string_view(stored).substr(0, bytes));
    EXPECT_EQ(entry.status().code(), absl::StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(std::string(entry.status().message()), HasSubstr("'server/3'"));
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeMetaValue("server/3", stored + "x").status()));
}

TEST(MetaValueCodec, EveryFlippedBitIsDataLoss) {
  const std::string stored = EncodeMetaValue(kExample);
  for (size_t bit = 0; bit < stored.size() * 8; ++bit) {
    std::string changed = stored;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    const auto entry = DecodeMetaValue("server/3", changed);
    EXPECT_EQ(entry.status().code(), absl::StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(MetaValueCodec, AValueOfAnotherKeyIsDataLoss) {
  const std::string stored = EncodeMetaValue(kExample);
  for (const char* key : {"server/4", "server/", "server/33", ""}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeMetaValue(key, stored).status())) << key;
  }
}

TEST(MetaValueCodec, AnUnknownVersionIsRefusedAndNotCalledDamage) {
  std::string stored = EncodeMetaValue(kExample);
  stored[8] = 2;
  const auto entry = DecodeMetaValue("server/3", Resealed("server/3", stored));
  EXPECT_EQ(entry.status().code(), absl::StatusCode::kFailedPrecondition) << entry.status();
  EXPECT_THAT(std::string(entry.status().message()), HasSubstr("format version 2"));
}

TEST(MetaValueCodec, HeadersThatContradictThemselvesAreDataLoss) {
  const std::string stored = EncodeMetaValue(kExample);
  ASSERT_TRUE(DecodeMetaValue("server/3", Resealed("server/3", stored)).ok());
  for (const auto& [offset, byte] : {std::pair(10, 1), std::pair(12, 5), std::pair(16, 8)}) {
    std::string changed = stored;
    changed[offset] = static_cast<char>(byte);
    const auto entry = DecodeMetaValue("server/3", Resealed("server/3", changed));
    EXPECT_EQ(entry.status().code(), absl::StatusCode::kDataLoss) << "offset " << offset;
  }
}

}  // namespace
}  // namespace ballast::server
