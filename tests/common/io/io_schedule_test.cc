// IoSchedule: the device's next operation, and the meaning of results.
#include "common/io/io_schedule.h"

#include <cerrno>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr size_t kBlock = 8192;

IoRequest Make(IoKind kind, size_t bytes, bool urgent = false) {
  return {.kind = kind, .path = "slots", .offset = 4096, .bytes = bytes, .urgent = urgent};
}

TEST(IoScheduleTest, RequestsAreCutIntoBlocksAndTheLastOneIsShort) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kRead, 2 * kBlock + 4096));
  std::vector<size_t> sizes;
  while (const auto piece = schedule.Next()) sizes.push_back(piece->bytes);
  EXPECT_THAT(sizes, testing::ElementsAre(kBlock, kBlock, 4096));
  EXPECT_EQ(schedule.bytes_under_way(IoKind::kRead), 2 * kBlock + 4096);
}

TEST(IoScheduleTest, AsManyBytesOfReadsAsOfWritesAreUnderWay) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kRead, 10 * kBlock));
  schedule.Add(Make(IoKind::kWrite, 10 * kBlock));
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(schedule.Next().has_value());
  EXPECT_EQ(schedule.bytes_under_way(IoKind::kRead), 4 * kBlock);
  EXPECT_EQ(schedule.bytes_under_way(IoKind::kWrite), 4 * kBlock);
}

TEST(IoScheduleTest, UrgentRequestsPassAllOthers) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kRead, kBlock));
  schedule.Add(Make(IoKind::kWrite, kBlock));
  schedule.Add(Make(IoKind::kWrite, kBlock, /*urgent=*/true));
  schedule.Add(Make(IoKind::kSync, 0, /*urgent=*/true));
  EXPECT_TRUE(schedule.Next()->of->request.urgent);
  EXPECT_EQ(schedule.Next()->of->request.kind, IoKind::kSync);
  EXPECT_FALSE(schedule.Next()->of->request.urgent);
}

TEST(IoScheduleTest, AShortTransferGoesOnAtAPagesStart) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kWrite, kBlock));
  EXPECT_FALSE(schedule.Finish(*schedule.Next(), 4096 + 512).has_value());
  const auto rest = schedule.Next();
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->at, 4096u);
  EXPECT_EQ(rest->bytes, kBlock - 4096);
  const auto done = schedule.Finish(*rest, kBlock - 4096);
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->status.ok());
  EXPECT_EQ(schedule.bytes_under_way(IoKind::kWrite), 0u);
}

TEST(IoScheduleTest, AnInterruptedBlockIsTheNextAgain) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kRead, 2 * kBlock));
  EXPECT_FALSE(schedule.Finish(*schedule.Next(), -EINTR).has_value());
  EXPECT_EQ(schedule.Next()->at, 0u);
}

TEST(IoScheduleTest, TheFirstErrorIsToldOnceAllBlocksHaveEnded) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kWrite, 3 * kBlock));
  const IoPiece first = *schedule.Next();
  const IoPiece second = *schedule.Next();
  const IoPiece third = *schedule.Next();
  EXPECT_FALSE(schedule.Finish(second, -EIO).has_value());
  EXPECT_FALSE(schedule.Finish(first, -ENOSPC).has_value());
  const auto done = schedule.Finish(third, kBlock);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(done->status.message()),
              testing::HasSubstr("write 8192 bytes at offset 12288 of slots"));
}

TEST(IoScheduleTest, AReadPastTheEndSaysWhereTheFileEnds) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kRead, kBlock));
  const auto done = schedule.Finish(*schedule.Next(), 100);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(done->status.message()), testing::HasSubstr("ends after 100"));
}

TEST(IoScheduleTest, AWriteOfNothingMeansAFullDevice) {
  IoSchedule schedule(kBlock);
  schedule.Add(Make(IoKind::kWrite, kBlock));
  EXPECT_EQ(schedule.Finish(*schedule.Next(), 0)->status.code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace ballast
