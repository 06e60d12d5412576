// Tests of common/io/arena.h.
#include "common/io/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace ballast {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

TEST(ArenaTest, IsAlignedRoundedUpAndZero) {
  absl::StatusOr<Arena> arena = Arena::Create(3 * kMiB + 1);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->bytes(), 4 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % Arena::kAlignmentBytes, 0u);
  for (size_t i = 0; i < arena->bytes(); i += 4096) ASSERT_EQ(arena->data()[i], 0);
  // All of it is writable, to the last byte.
  std::memset(arena->data(), 1, arena->bytes());
}

TEST(ArenaTest, MovingHandsOverTheMapping) {
  Arena first = *Arena::Create(1);
  char* const data = first.data();
  data[0] = 42;
  Arena second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.bytes(), 0u);
  EXPECT_EQ(second.data(), data);
  Arena third = *Arena::Create(1);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.data()[0], 42);
}

TEST(ArenaTest, RefusalsSayHowMuchWasAskedFor) {
  EXPECT_EQ(Arena::Create(0).status().code(), absl::StatusCode::kInvalidArgument);
  // More than 47 bits of address space, then more than a size can be rounded.
  for (size_t bytes : {size_t{1} << 50, SIZE_MAX}) {
    const absl::Status status = Arena::Create(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(bytes)));
  }
}

BufferPool MakePool(size_t buffer_bytes, size_t max_buffers, size_t grow_bytes) {
  BufferPool::Options options;
  options.buffer_bytes = buffer_bytes;
  options.max_buffers = max_buffers;
  options.grow_bytes = grow_bytes;
  return *BufferPool::Create(options);
}

TEST(BufferPoolTest, BuffersAreAlignedAndDoNotOverlap) {
  BufferPool pool = MakePool(100, 50, 1);
  std::vector<BufferRef> buffers;
  std::set<uintptr_t> starts;
  for (int i = 0; i < 50; ++i) {
    buffers.push_back(*pool.Acquire());
    const uintptr_t start = reinterpret_cast<uintptr_t>(buffers.back().data());
    EXPECT_EQ(start % 64, 0u);
    EXPECT_EQ(buffers.back().bytes(), 100u);
    starts.insert(start);
    std::memset(buffers.back().data(), i, 100);
  }
  EXPECT_EQ(starts.size(), 50u);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(buffers[static_cast<size_t>(i)].data()[99], i);
  }
}

TEST(BufferPoolTest, GrowsOnlyWhenNeeded) {
  BufferPool pool = MakePool(kMiB, 8, 2 * kMiB);
  EXPECT_EQ(pool.mapped_bytes(), 0u);
  BufferRef first = *pool.Acquire();
  BufferRef second = *pool.Acquire();
  EXPECT_EQ(pool.mapped_bytes(), 2 * kMiB);
  BufferRef third = *pool.Acquire();
  EXPECT_EQ(pool.mapped_bytes(), 4 * kMiB);
  EXPECT_EQ(pool.in_use(), 3u);
}

// Kilobytes of a line of /proc/self/status.
uint64_t StatusKilobytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    uint64_t value = 0;
    if (word == name && file >> value) return value;
  }
  return 0;
}

TEST(BufferPoolTest, PreparedBuffersHaveMemoryAndAreNotMoreThanTheLimit) {
  BufferPool pool = MakePool(kMiB, 8, 2 * kMiB);
  const uint64_t resident = StatusKilobytes("VmRSS:");
  pool.Prepare(5);
  EXPECT_EQ(pool.mapped_bytes(), 6 * kMiB);
  EXPECT_EQ(pool.in_use(), 0u);
  EXPECT_GE(StatusKilobytes("VmRSS:"), resident + 5 * 1024) << "kernels before 5.14 cannot";
  pool.Prepare(5);  // They are mapped already.
  EXPECT_EQ(pool.mapped_bytes(), 6 * kMiB);
  pool.Prepare(100);
  EXPECT_EQ(pool.mapped_bytes(), 8 * kMiB);
  std::vector<BufferRef> out;
  for (int i = 0; i < 8; ++i) out.push_back(*pool.Acquire());
  EXPECT_FALSE(pool.Acquire().ok());
}

TEST(ArenaTest, SmallOnesTakeNoHugePages) {
  const uint64_t resident = StatusKilobytes("VmRSS:");
  std::vector<Arena> arenas;
  for (int i = 0; i < 32; ++i) {
    arenas.push_back(*Arena::Create(kMiB / 8));
    arenas.back().data()[0] = 1;
    // Its first 2 MiB may be a huge page, the rest not.
    arenas.push_back(*Arena::Create(2 * kMiB + 1));
    arenas.back().data()[2 * kMiB] = 1;
  }
  EXPECT_LT(StatusKilobytes("VmRSS:"), resident + 8 * 1024);
}

TEST(BufferPoolTest, NoMoreBuffersGetMemoryThanArePrepared) {
  BufferPool pool = MakePool(kMiB, 100, 64 * kMiB);
  const uint64_t resident = StatusKilobytes("VmRSS:");
  pool.Prepare(2);
  EXPECT_EQ(pool.mapped_bytes(), 64 * kMiB);
  EXPECT_LT(StatusKilobytes("VmRSS:"), resident + 8 * 1024);
}

TEST(BufferPoolTest, AtTheLimitItRefusesUntilABufferReturns) {
  BufferPool pool = MakePool(64, 2, 1);
  BufferRef first = *pool.Acquire();
  BufferRef second = *pool.Acquire();
  const absl::Status status = pool.Acquire().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("all 2 buffers of 64B"));
  char* const data = first.data();
  first.Reset();
  EXPECT_FALSE(first);
  BufferRef again = *pool.Acquire();
  EXPECT_EQ(again.data(), data);
}

TEST(BufferPoolTest, TheLastOfManyReferencesReturnsTheBuffer) {
  BufferPool pool = MakePool(64, 1, 1);
  BufferRef first = *pool.Acquire();
  BufferRef copy = first;
  BufferRef moved = std::move(first);
  EXPECT_FALSE(first);
  std::shared_ptr<char> shared = moved.ToShared();
  EXPECT_EQ(shared.get(), copy.data());
  copy = BufferRef();
  moved.Reset();
  EXPECT_EQ(pool.in_use(), 1u);
  shared.reset();
  EXPECT_EQ(pool.in_use(), 0u);
}

TEST(BufferPoolTest, BuffersOutliveThePool) {
  BufferRef buffer;
  {
    BufferPool pool = MakePool(4096, 4, 1);
    buffer = *pool.Acquire();
  }
  std::memset(buffer.data(), 7, buffer.bytes());
  EXPECT_EQ(buffer.data()[4095], 7);
}

TEST(ArenaTest, LocksPagesFromTheirFirstTouchOn) {
  Arena arena = *Arena::Create(size_t{8} << 20);
  const uint64_t before = StatusKilobytes("VmLck:");
  const uint64_t resident = StatusKilobytes("VmRSS:");
  if (!arena.LockTouchedPages()) GTEST_SKIP() << "this process may not lock 8 MiB";
  EXPECT_EQ(StatusKilobytes("VmLck:"), before + 8 * 1024);
  EXPECT_LT(StatusKilobytes("VmRSS:"), resident + 4 * 1024) << "untouched pages took memory";
  std::memset(arena.data(), 1, arena.bytes());
  EXPECT_GE(StatusKilobytes("VmRSS:"), resident + 7 * 1024);
}

TEST(ArenaTest, GoesOnWithoutTheRightToLock) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  Arena arena = *Arena::Create(size_t{8} << 20);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  const bool locked = arena.LockTouchedPages();  // Root may all the same.
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
  EXPECT_TRUE(!locked || geteuid() == 0);
  std::memset(arena.data(), 1, arena.bytes());
  EXPECT_EQ(arena.data()[arena.bytes() - 1], 1);
}

TEST(BufferPoolTest, ThreadsMayReleaseWhatOthersAcquired) {
  BufferPool pool = MakePool(64, 8, 1);
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int id = 1; id <= 4; ++id) {
    threads.emplace_back([&, id] {
      for (int i = 0; i < 500; ++i) {
        BufferRef buffer = *pool.Acquire();
        std::memset(buffer.data(), id, 64);
        for (int byte = 0; byte < 64; ++byte) torn += buffer.data()[byte] != id;
        if (i % 100 == 0)
          std::thread([held = std::move(buffer)]() mutable { held.Reset(); }).join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(pool.in_use(), 0u);
}

TEST(BufferPoolTest, RefusesSizesThatMakeNoSense) {
  for (const auto& [bytes, count] : std::vector<std::pair<size_t, size_t>>{
           {0, 1}, {1, 0}, {SIZE_MAX, 1}, {1, SIZE_MAX}, {size_t{1} << 40, size_t{1} << 40}}) {
    BufferPool::Options options;
    options.buffer_bytes = bytes;
    options.max_buffers = count;
    EXPECT_EQ(BufferPool::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ballast
