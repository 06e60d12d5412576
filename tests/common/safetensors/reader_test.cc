// Reading files that are whole, cut off, too long or on a bad disk.
#include "common/safetensors/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/io/memory_disk.h"
#include "tests/common/safetensors/files.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const char kPath[] = "m.safetensors";
const char kJson[] = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                     R"("b":{"dtype":"U16","shape":[2],"data_offsets":[4,8]}})";
const char kData[] = "abcdEFGH";

class SafetensorsReaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const SafetensorsLimits& limits = {}) {
    return SafetensorsReader::Open(&disk_, kPath, limits);
  }
  absl::Status OpenError(absl::string_view bytes, const SafetensorsLimits& limits = {}) {
    PutFile(&disk_, kPath, bytes);
    return Open(limits).status();
  }

  MemoryDisk disk_;
};

TEST_F(SafetensorsReaderTest, ReadsRangesOfTensors) {
  PutFile(&disk_, kPath, FileOf(kJson, kData));
  const auto reader = Open();
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ((*reader)->header().tensors.size(), 2u);
  std::string text(4, '?');
  ASSERT_TRUE((*reader)->ReadAt(1, 0, 4, text.data()).ok());
  EXPECT_EQ(text, "EFGH");
  ASSERT_TRUE((*reader)->ReadAt(0, 2, 2, text.data()).ok());
  EXPECT_EQ(text, "cdGH");
  EXPECT_TRUE((*reader)->ReadAt(0, 4, 0, nullptr).ok());
}

TEST_F(SafetensorsReaderTest, RefusesRangesThatLeaveTheTensor) {
  PutFile(&disk_, kPath, FileOf(kJson, kData));
  const auto reader = Open();
  ASSERT_TRUE(reader.ok()) << reader.status();
  char to[16];
  const auto code = [&](size_t tensor, uint64_t offset, size_t bytes) {
    return (*reader)->ReadAt(tensor, offset, bytes, to).code();
  };
  EXPECT_EQ(code(0, 0, 5), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 4, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 5, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, UINT64_MAX, 2), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, 2, SIZE_MAX), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, 0, 0), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsReaderTest, ErrorsNameThePath) {
  EXPECT_THAT(Text(OpenError(FileOf("[]", ""))), HasSubstr(kPath));
  EXPECT_EQ(
      OpenError(FileOf(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "x")).code(),
      absl::StatusCode::kUnimplemented);
  ASSERT_TRUE(disk_.Remove(kPath).ok());
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsReaderTest, AFileCutOffAnywhereIsRefusedWithPathAndSizes) {
  const std::string whole = FileOf(kJson, kData);
  const size_t head = whole.size() - 8;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const absl::Status status = OpenError(whole.substr(0, bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes;
    EXPECT_THAT(Text(status), HasSubstr(kPath));
    const std::string is = absl::StrCat(bytes < head ? bytes : bytes - head);
    EXPECT_THAT(Text(status), HasSubstr(absl::StrCat(" ", is))) << bytes;
    if (bytes >= 8 && bytes < head) {
      EXPECT_THAT(Text(status), HasSubstr(absl::StrCat("byte ", head)));
    } else if (bytes >= head) {
      EXPECT_THAT(Text(status), HasSubstr("have 8 bytes"));
    }
  }
}

TEST_F(SafetensorsReaderTest, TrailingBytesAreRefusedWithPathAndSizes) {
  EXPECT_THAT(Text(OpenError(FileOf(kJson, "abcdEFGHi"))),
              AllOf(HasSubstr(kPath), HasSubstr("have 8 bytes"), HasSubstr("has 9")));
}

TEST_F(SafetensorsReaderTest, ALengthAboveTheLimitTakesNoMemory) {
  for (const uint64_t length : {uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7}) {
    EXPECT_THAT(Text(OpenError(RawFile(length, kJson, kData))),
                AllOf(HasSubstr(absl::StrCat(length)), HasSubstr("100000000")));
  }
  // Within the limit and not in the file.
  EXPECT_THAT(Text(OpenError(RawFile(100'000'000, kJson, kData))), HasSubstr("cut off"));
}

TEST_F(SafetensorsReaderTest, TakesTheLimitsOfItsCaller) {
  EXPECT_EQ(OpenError(FileOf(kJson, kData), {.header_bytes = 20}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenError(FileOf(kJson, kData), {.tensors = 1}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsReaderTest, ErrorsOfTheDiskArePassedOn) {
  for (const uint64_t nth : {1, 2}) {
    disk_.Fail(MemoryDisk::Operation::kRead, nth, EIO);
    EXPECT_EQ(OpenError(FileOf(kJson, kData)).code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(SafetensorsReaderTest, AFileThatShrinksWhileItIsReadIsAnError) {
  PutFile(&disk_, kPath, FileOf(kJson, kData));
  const auto reader = Open();
  ASSERT_TRUE(reader.ok()) << reader.status();
  PutFile(&disk_, kPath, FileOf(kJson, "abcd"));  // Emptied, then written: the same file.
  char to[4];
  EXPECT_EQ((*reader)->ReadAt(1, 0, 4, to).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ballast
