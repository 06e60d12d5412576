// A server's messages about itself, and whose data directory it does not touch.
#include "server/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reason.h"
#include "server/meta/memory_store.h"

namespace ballast::server {
namespace {

using ::testing::HasSubstr;

TEST(RegistrationTest, ARecordSaysWhereTheServerIsAndWhatItsDataLieOn) {
  const std::string record = DescribeServer("127.0.0.1:7070", ::testing::TempDir());
  EXPECT_THAT(record, HasSubstr("address 127.0.0.1:7070\n"));
  EXPECT_THAT(record, HasSubstr("data_dir " + ::testing::TempDir() + "\n"));
  EXPECT_THAT(record, HasSubstr("file_system "));
  EXPECT_THAT(record, ::testing::ContainsRegex("capacity_bytes [1-9]"));
  EXPECT_THAT(record, ::testing::ContainsRegex("device [0-9]+:[0-9]+"));
}

TEST(RegistrationTest, UnknownFactsAreOmitted) {
  EXPECT_EQ(DescribeServer("a:1", "/nowhere"), "address a:1\ndata_dir /nowhere\n");
}

TEST(RegistrationTest, EachStartReplacesTheRecord) {
  MemoryMetaStore meta;
  ASSERT_TRUE(RegisterServer(&meta, 3, "/data", "first").ok());
  ASSERT_TRUE(RegisterServer(&meta, 3, "/data", "second").ok());
  EXPECT_EQ((*meta.Get("server/3"))->value, "second");
}

TEST(RegistrationTest, AnotherServersDataDirectoryIsRefusedAndLeftAsItIs) {
  MemoryMetaStore meta;
  ASSERT_TRUE(RegisterServer(&meta, 3, "/data", "three").ok());
  const absl::Status status = RegisterServer(&meta, 1, "/data", "one");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(status), Reason::kStateLost);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/data is the data directory of server 3, this is server 1"));
  EXPECT_FALSE((*meta.Get("server/1")).has_value());
}

}  // namespace
}  // namespace ballast::server
