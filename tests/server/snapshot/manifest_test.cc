// The manifest as bytes: its fields come back, and nothing else is taken for one.
#include "server/snapshot/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "common/base/reason.h"
#include "common/bytes/crc32c.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

SnapshotManifest Example() {
  SnapshotManifest manifest;
  manifest.id = 0x0123456789abcdef;
  manifest.name = "warm";
  manifest.job = "gpt";
  manifest.created_s = 1'700'000'000;
  manifest.round = 42;
  manifest.bytes = 123'456;
  manifest.plan = std::string("plan\0bytes", 10);
  manifest.prepared.epoch = 3;
  manifest.prepared.round = 41;
  manifest.prepared.present = {true, false};
  manifest.prepared.tensor_step = {41, 7};
  manifest.prepared.user_state[1] = "position";
  manifest.decision.epoch = 3;
  manifest.decision.round = 41;
  return manifest;
}

void Seal(std::string* bytes) {
  const uint32_t crc = Crc32c(bytes->data(), bytes->size() - 4);
  std::memcpy(bytes->data() + bytes->size() - 4, &crc, 4);
}

TEST(ManifestTest, EverythingComesBack) {
  const auto again = DecodeManifest(EncodeManifest(Example()));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(EncodeManifest(*again), EncodeManifest(Example()));
  EXPECT_EQ(again->id, Example().id);
  EXPECT_EQ(again->name, "warm");
  EXPECT_EQ(again->job, "gpt");
  EXPECT_EQ(again->created_s, 1'700'000'000u);
  EXPECT_EQ(again->round, 42u);
  EXPECT_EQ(again->bytes, 123'456u);
  EXPECT_EQ(again->plan, Example().plan);
  EXPECT_EQ(again->prepared.tensor_step, Example().prepared.tensor_step);
  EXPECT_EQ(again->prepared.user_state, Example().prepared.user_state);
}

// As docs/formats/snapshot.md shows them.
TEST(ManifestTest, BytesOfVersionOneStayAsTheyAre) {
  const std::string bytes = EncodeManifest(Example());
  EXPECT_EQ(bytes.substr(0, 8), "BALLSNP\n");
  EXPECT_EQ(bytes.substr(8, 8), std::string("\1\0\0\0\0\0\0\0", 8));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data() + 16, sizeof(length));
  EXPECT_EQ(length, bytes.size());
  EXPECT_EQ(bytes.substr(24, 8), "\xef\xcd\xab\x89\x67\x45\x23\x01");
  EXPECT_EQ(bytes.substr(32, 8), std::string("\4\0\0\0warm", 8));
}

TEST(ManifestTest, ASingleChangedBitOrAMissingByteIsDataLoss) {
  const std::string whole = EncodeManifest(Example());
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(DecodeManifest(changed).status())) << bit;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(absl::IsDataLoss(DecodeManifest(whole.substr(0, size)).status())) << size;
  }
}

TEST(ManifestTest, RandomFieldsUnderARightChecksumAreRefusedOrMeanThemselves) {
  std::mt19937_64 random(5);
  const std::string whole = EncodeManifest(Example());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      bytes[16 + random() % (bytes.size() - 20)] = static_cast<char>(random());
    }
    Seal(&bytes);
    const auto manifest = DecodeManifest(bytes);
    if (manifest.ok()) {
      ASSERT_EQ(EncodeManifest(*manifest), bytes);
    }
  }
}

TEST(ManifestTest, ANewerVersionIsNamed) {
  std::string bytes = EncodeManifest(Example());
  bytes[8] = 2;
  Seal(&bytes);
  const absl::Status status = DecodeManifest(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("format version 2"));
}

TEST(ManifestTest, RecordsOfAnotherRoundAreDataLoss) {
  SnapshotManifest manifest = Example();
  manifest.round = 43;
  EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(EncodeManifest(manifest)).status()));
}

TEST(SnapshotNameTest, IsLettersDigitsAndThreeSigns) {
  for (const char* name : {"a", "A9", "_x", "run-1.2_b", "0"}) {
    EXPECT_TRUE(CheckSnapshotName(name).ok()) << name;
  }
  EXPECT_TRUE(CheckSnapshotName(std::string(64, 'x')).ok());
  for (const std::string& name : {std::string(), std::string(65, 'x'), std::string("."),
                                  std::string("../a"), std::string("a/b"), std::string("a\0b", 3),
                                  std::string("-a"), std::string("a b"), std::string("\xc3\xa4")}) {
    const absl::Status status = CheckSnapshotName(name);
    EXPECT_EQ(ReasonOf(status), Reason::kBadArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("1 to 64"));
  }
}

TEST(SnapshotNameTest, OfAPassingSnapshotIsNoUsers) {
  const std::string name(kPassingSnapshotName);
  EXPECT_FALSE(CheckSnapshotName(name).ok());
  SnapshotManifest manifest = Example();
  manifest.name = name;
  EXPECT_EQ(DecodeManifest(EncodeManifest(manifest))->name, name);
  manifest.name = ".other";
  EXPECT_TRUE(absl::IsDataLoss(DecodeManifest(EncodeManifest(manifest)).status()));
}

}  // namespace
}  // namespace ballast::server
