// StorageMeter's counts over the life of a job's files.
#include "server/durability/storage_meter.h"

#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace ballast::server {
namespace {

class StorageMeterTest : public testing::Test {
 protected:
  ServerMetrics metrics_{BuildInfo()};
  const std::shared_ptr<JobMetrics> job_ = metrics_.Job({.name = "gpt"});
  const StorageMeter meter_{RealClock::Get(), &metrics_, {.name = "gpt"}, true};
};

TEST_F(StorageMeterTest, AppendedBytesAreUnflushedUntilAFlushReturns) {
  EXPECT_TRUE(meter_.Appended(meter_.Now(), 5000, absl::OkStatus()).ok());
  EXPECT_TRUE(meter_.Appended(meter_.Now(), 0, absl::OkStatus()).ok());
  const uint64_t bytes = GradientLog::RecordBytes(5000) + GradientLog::RecordBytes(0);
  EXPECT_EQ(job_->log_bytes.value(), bytes);
  EXPECT_EQ(job_->log_unflushed_bytes.value(), bytes);
  EXPECT_FALSE(meter_.Flushed(meter_.Now(), absl::InternalError("no")).ok());
  EXPECT_EQ(job_->log_unflushed_bytes.value(), bytes);
  EXPECT_TRUE(meter_.Flushed(meter_.Now(), absl::OkStatus()).ok());
  EXPECT_EQ(job_->log_unflushed_bytes.value(), 0);
  EXPECT_EQ(metrics_.log_flush()->Read().count, 1u);
  EXPECT_EQ(metrics_.log_append()->Read().count, 2u);
}

TEST_F(StorageMeterTest, FlushesThatReachNoDiskAreNotObserved) {
  const StorageMeter process(RealClock::Get(), &metrics_, {.name = "gpt"}, false);
  EXPECT_TRUE(process.Appended(process.Now(), 5000, absl::OkStatus()).ok());
  EXPECT_TRUE(process.Flushed(process.Now(), absl::OkStatus()).ok());
  EXPECT_EQ(job_->log_unflushed_bytes.value(), 0);
  EXPECT_EQ(metrics_.log_flush()->Read().count, 0u);
}

TEST_F(StorageMeterTest, ALogWithoutRoomIsShortOfItUntilARecordFindsSome) {
  EXPECT_FALSE(meter_.Appended(meter_.Now(), 1, absl::ResourceExhaustedError("full")).ok());
  EXPECT_EQ(job_->log_short_of_room.value(), 1);
  EXPECT_EQ(job_->log_bytes.value(), 0u);
  EXPECT_TRUE(meter_.Appended(meter_.Now(), 1, absl::OkStatus()).ok());
  EXPECT_EQ(job_->log_short_of_room.value(), 0);
}

TEST_F(StorageMeterTest, DamageIsCountedWhereItIsFound) {
  EXPECT_FALSE(meter_.LogRead(absl::DataLossError("torn")).ok());
  EXPECT_FALSE(meter_.ImageRead(meter_.Now(), absl::DataLossError("torn")).ok());
  EXPECT_FALSE(meter_.ImageRead(meter_.Now(), absl::NotFoundError("none")).ok());
  EXPECT_EQ(metrics_.checksum_errors("log")->value(), 1u);
  EXPECT_EQ(metrics_.checksum_errors("image")->value(), 1u);
  EXPECT_EQ(metrics_.image_io(ImageOp::kRead)->Read().count, 0u);
}

}  // namespace
}  // namespace ballast::server
