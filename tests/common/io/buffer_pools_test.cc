// Buffers by the size of their content.
#include "common/io/buffer_pools.h"

#include <gtest/gtest.h>

namespace ballast {
namespace {

TEST(BufferPoolsTest, AClassIsAtMostAnEighthLargerThanItsBytesAndNeverAboveTheMost) {
  constexpr size_t kMost = 3 << 20;
  for (size_t bytes = 1; bytes <= kMost; bytes += 997) {
    const size_t of = BufferPools::ClassOf(bytes, kMost, 4096);
    EXPECT_GE(of, bytes);
    EXPECT_LE(of, std::max(bytes + bytes / 8, (bytes + 4095) / 4096 * 4096));
    EXPECT_LE(of, kMost);
    EXPECT_EQ(of % 4096, 0u);
  }
  EXPECT_EQ(BufferPools::ClassOf(kMost, kMost, 4096), kMost);
  EXPECT_EQ(BufferPools::ClassOf(8, 512, 64), 64u);
}

TEST(BufferPoolsTest, EachSizeHasItsLimitAndOthersAreRefused) {
  BufferPools pools;
  pools.Allow(64, 1);
  pools.Allow(4096, 1);
  pools.Allow(64, 1);
  const auto one = pools.Acquire(64), two = pools.Acquire(64);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->bytes(), 64u);
  EXPECT_TRUE(absl::IsResourceExhausted(pools.Acquire(64).status()));
  EXPECT_TRUE(pools.Acquire(4096).ok());
  EXPECT_TRUE(absl::IsInternal(pools.Acquire(128).status()));
}

}  // namespace
}  // namespace ballast
