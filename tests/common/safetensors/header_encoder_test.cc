// Headers that we write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "common/safetensors/header.h"
#include "tests/common/safetensors/files.h"

namespace ballast {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Tensors = std::vector<TensorEntry>;

const Tensors kTensors = {
    {.name = "w\"\n\xc3\xa9", .dtype = SafeDType::kF32, .shape = {2, 3}},
    {.name = "none", .dtype = SafeDType::kI64, .shape = {0, 7}},
    {.name = "scalar", .dtype = SafeDType::kF8E4M3, .shape = {}},
};

void ExpectRefused(const Tensors& tensors, const std::string& word,
                   const SafetensorsEncodeOptions& options = {}) {
  const absl::Status status = EncodeSafetensorsHeader(tensors, {}, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << word;
  EXPECT_THAT(Text(status), HasSubstr(word));
}

TEST(SafetensorsEncoder, BytesStayAsTheyAre) {
  const absl::StatusOr<SafetensorsHead> head =
      EncodeSafetensorsHeader(kTensors, {{"z", "1"}, {"format", "pt"}}, {});
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->bytes,
            FileOf("{\"__metadata__\":{\"format\":\"pt\",\"z\":\"1\"},"
                   "\"w\\\"\\u000a\xc3\xa9\":{\"dtype\":\"F32\",\"shape\":[2,3],"
                   "\"data_offsets\":[0,24]},"
                   "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[24,24]},"
                   "\"scalar\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[24,25]}}"
                   "   ",
                   ""));
}

TEST(SafetensorsEncoder, IsParsedBackToTheSame) {
  const std::map<std::string, std::string> metadata = {{"", ""}, {"k", std::string("\0\x1f", 2)}};
  const absl::StatusOr<SafetensorsHead> head = EncodeSafetensorsHeader(kTensors, metadata, {});
  ASSERT_TRUE(head.ok()) << head.status();
  const absl::StatusOr<SafetensorsHeader> parsed =
      ParseSafetensorsHeader(head->bytes.substr(8), 25);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->metadata, metadata);
  EXPECT_EQ(parsed->data_offset, head->header.data_offset);
  ASSERT_EQ(parsed->tensors.size(), kTensors.size());
  for (size_t i = 0; i < kTensors.size(); ++i) {
    EXPECT_EQ(parsed->tensors[i].name, kTensors[i].name);
    EXPECT_EQ(parsed->tensors[i].dtype, kTensors[i].dtype);
    EXPECT_EQ(parsed->tensors[i].shape, kTensors[i].shape);
    EXPECT_EQ(parsed->tensors[i].begin, head->header.tensors[i].begin);
    EXPECT_EQ(parsed->tensors[i].end, head->header.tensors[i].end);
  }
}

TEST(SafetensorsEncoder, DataBeginsAtAMultipleOfTheAlignment) {
  for (const uint64_t alignment : {uint64_t{8}, uint64_t{64}, uint64_t{4096}}) {
    for (int length = 1; length <= 20; ++length) {
      const absl::StatusOr<SafetensorsHead> head = EncodeSafetensorsHeader(
          {{.name = std::string(length, 'x')}}, {}, {.data_alignment = alignment});
      ASSERT_TRUE(head.ok()) << head.status();
      EXPECT_EQ(head->bytes.size() % alignment, 0u);
      EXPECT_EQ(head->bytes.size(), head->header.data_offset);
      EXPECT_EQ(head->header.file_bytes(), head->bytes.size() + 4);
    }
  }
  for (const uint64_t alignment : {uint64_t{0}, uint64_t{4}, uint64_t{12}, uint64_t{2} << 20}) {
    ExpectRefused({}, "data_alignment", {.data_alignment = alignment});
  }
}

TEST(SafetensorsEncoder, OfNothingIsAnEmptyObject) {
  const absl::StatusOr<SafetensorsHead> head = EncodeSafetensorsHeader({}, {}, {});
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->bytes, FileOf("{}      ", ""));
  EXPECT_EQ(head->header.file_bytes(), 16u);
}

TEST(SafetensorsEncoder, RefusesNamesThatNoReaderTakes) {
  ExpectRefused({{.name = "__metadata__"}}, "__metadata__");
  ExpectRefused({{.name = "a"}, {.name = "b"}, {.name = "a"}}, "twice");
  ExpectRefused({{.name = "\xff"}}, "UTF-8");
  ExpectRefused({{.name = std::string("a\0b", 3)}}, "byte 0");
  ExpectRefused({{.name = std::string(4097, 'x')}}, "4096");
  const auto metadata = [](std::map<std::string, std::string> map) {
    return EncodeSafetensorsHeader({}, std::move(map), {}).status().code();
  };
  EXPECT_EQ(metadata({{"\xff", ""}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(metadata({{"", "\xff"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(metadata({{std::string(1, '\0'), ""}}), absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsEncoder, RefusesFilesLargerThanFilesCanBe) {
  const uint64_t half = uint64_t{1} << 62;
  ExpectRefused({{.name = "a", .dtype = SafeDType::kU8, .shape = {half}},
                 {.name = "b", .dtype = SafeDType::kU8, .shape = {half}}},
                "\"b\"");
  ExpectRefused({{.name = "a", .dtype = SafeDType::kF64, .shape = {half}}}, "\"a\"");
  // The tensors alone would fit.
  ExpectRefused({{.name = "a", .dtype = SafeDType::kU8, .shape = {2 * half - 1}}}, "2^63-1");
}

TEST(SafetensorsEncoder, KeepsTheLimitsOfReaders) {
  const Tensors two = {{.name = "a", .shape = {1, 1}}, {.name = "b", .shape = {1, 1}}};
  ExpectRefused(two, "2 tensors", {.limits = {.tensors = 1}});
  ExpectRefused(two, "dimensions", {.limits = {.rank = 1}});
  ExpectRefused(two, "limit of 100", {.limits = {.header_bytes = 100}});
  EXPECT_EQ(
      EncodeSafetensorsHeader({}, {{"k", ""}}, {.limits = {.metadata_entries = 0}}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
