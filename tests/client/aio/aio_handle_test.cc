// AioHandle on the machine's disk, and with a backend and a file system that fail.
#include "client/aio/aio_handle.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::chrono::seconds kLong{60};
constexpr uint64_t kMiB = uint64_t{1} << 20;

// Carries blocks with the kernel's calls, and lets a test choose another result.
class ChoosingBackend : public IoBackend {
 public:
  using Choose = std::function<int64_t(const IoBlock&, int64_t bytes)>;
  explicit ChoosingBackend(Choose choose) : choose_(std::move(choose)) {}

  int Submit(absl::Span<const IoBlock> blocks) override {
    MutexLock lock(&mu_);
    for (const IoBlock& block : blocks) {
      const int64_t chosen = choose_(block, static_cast<int64_t>(block.bytes));
      int64_t count = chosen;
      const auto bytes = static_cast<size_t>(std::max<int64_t>(0, chosen));
      const auto offset = static_cast<off_t>(block.offset);
      if (bytes > 0 && block.kind == IoKind::kRead) {
        count = pread(block.descriptor, block.data, bytes, offset);
      } else if (bytes > 0) {
        count = pwrite(block.descriptor, block.data, bytes, offset);
      }
      events_.push_back({block.id, count});
    }
    arrived_.NotifyAll();
    return static_cast<int>(blocks.size());
  }

  int Reap(absl::Span<IoEvent> events) override {
    MutexLock lock(&mu_);
    while (events_.empty()) arrived_.Wait(&mu_);
    events[0] = events_.back();
    events_.pop_back();
    return 1;
  }

 private:
  const Choose choose_;
  Mutex mu_;
  CondVar arrived_;
  std::vector<IoEvent> events_ ABSL_GUARDED_BY(mu_);
};

IoBackendMaker Choosing(ChoosingBackend::Choose choose) {
  return [choose](int) { return std::make_unique<ChoosingBackend>(choose); };
}

std::string RandomBytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

class AioHandleTest : public ::testing::Test {
 protected:
  AioHandleTest() {
    // Where the build is: a file system with direct I/O, which a temporary one may not have.
    std::string pattern = "aio_handle_test.XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~AioHandleTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name = "file") const { return directory_ + "/" + name; }
  void Put(const std::string& content) const { std::ofstream(Path(), std::ios::binary) << content; }
  std::string Get() const {
    std::ifstream file(Path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  TransferRange Range(uint64_t offset, char* memory, uint64_t bytes) const {
    return {.path = Path(), .offset = offset, .memory = memory, .bytes = bytes};
  }

  static std::unique_ptr<AioHandle> Make(const AioHandleOptions& options,
                                         const IoBackendMaker& backend = MakeLibaioBackend) {
    auto handle = AioHandle::Create(options, PosixFileSystem(), backend);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return *std::move(handle);
  }
  static absl::Status Finish(AioHandle* handle) {
    if (!handle->Wait(handle->last(), kLong)) return absl::DeadlineExceededError("still under way");
    return handle->Take().status;
  }

  std::string directory_;
};

TEST_F(AioHandleTest, EveryOffsetLengthAndAlignmentGivesTheSameBytes) {
  const std::vector<uint64_t> offsets = {0, 1, 4095, 4096, 8200};
  const std::vector<uint64_t> lengths = {0, 1, 4096, 4097, 100'003};
  const std::vector<uint64_t> shifts = {0, 1, 64};
  const Arena arena = *Arena::Create(kMiB);
  for (const int parallelism : {1, 3}) {
    const auto handle = Make({.block_bytes = 16384, .queue_depth = 4, .parallelism = parallelism});
    uint32_t seed = 0;
    for (const uint64_t offset : offsets) {
      for (const uint64_t length : lengths) {
        for (const uint64_t shift : shifts) {
          SCOPED_TRACE(absl::StrCat(offset, " ", length, " ", shift, " ", parallelism));
          const std::string before = RandomBytes(120'000, ++seed);
          const std::string fresh = RandomBytes(length, ++seed);
          Put(before);
          char* const memory = arena.data() + shift;
          std::memcpy(memory, fresh.data(), length);
          ASSERT_TRUE(handle->StartWrite(Range(offset, memory, length), true).ok());
          ASSERT_EQ(Finish(handle.get()), absl::OkStatus());
          std::string expected = before;
          expected.replace(offset, length, fresh);
          ASSERT_TRUE(Get() == expected);
          std::memset(memory, 0, length);
          ASSERT_TRUE(handle->StartRead(Range(offset, memory, length), true).ok());
          ASSERT_EQ(Finish(handle.get()), absl::OkStatus());
          ASSERT_EQ(std::memcmp(memory, fresh.data(), length), 0);
        }
      }
    }
  }
}

TEST_F(AioHandleTest, AWriteCreatesAPrivateFileAndKeepsTheBytesAfterItsOwn) {
  const auto handle = Make({});
  std::string bytes = RandomBytes(10'000, 1);
  ASSERT_TRUE(handle->StartWrite(Range(0, bytes.data(), bytes.size()), false).ok());
  ASSERT_EQ(Finish(handle.get()), absl::OkStatus());
  EXPECT_TRUE(Get() == bytes);
  EXPECT_EQ(std::filesystem::status(Path()).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::string fewer = RandomBytes(5'000, 2);
  ASSERT_TRUE(handle->StartWrite(Range(0, fewer.data(), fewer.size()), false).ok());
  ASSERT_EQ(Finish(handle.get()), absl::OkStatus());
  EXPECT_TRUE(Get() == fewer + bytes.substr(5'000));
}

TEST_F(AioHandleTest, TakeReturnsEveryOperationOnce) {
  const auto handle = Make({.block_bytes = 4096, .queue_depth = 2, .parallelism = 2});
  std::vector<std::string> bytes;
  for (uint32_t i = 0; i < 5; ++i) bytes.push_back(RandomBytes(50'000 + i, i));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const TransferRange range{
        .path = Path(absl::StrCat(i)), .memory = bytes[i].data(), .bytes = bytes[i].size()};
    EXPECT_EQ(*handle->StartWrite(range, false), i + 1);
  }
  // A wait that is not followed by Take takes nothing.
  ASSERT_TRUE(handle->Wait(handle->last(), kLong));
  ASSERT_TRUE(handle->Wait(handle->last(), kLong));
  EXPECT_THAT(handle->Take().numbers, UnorderedElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(handle->Take().numbers, ElementsAre());
}

TEST_F(AioHandleTest, TheOwnerOfMemoryLivesUntilItsOperationIsTaken) {
  const auto handle = Make({});
  const auto memory = std::make_shared<std::string>(RandomBytes(10'000, 1));
  const TransferRange range = Range(0, memory->data(), memory->size());
  ASSERT_TRUE(handle->StartWrite(range, false, memory).ok());
  EXPECT_EQ(memory.use_count(), 2);
  ASSERT_TRUE(handle->Wait(handle->last(), kLong));
  EXPECT_EQ(memory.use_count(), 2) << "it has ended, and the caller does not know yet";
  EXPECT_TRUE(handle->Uses(memory->data() + 9'999, 1));
  EXPECT_FALSE(handle->Uses(memory->data() + 10'000, 1));
  EXPECT_THAT(handle->Take().owners, ElementsAre(memory));
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_FALSE(handle->Uses(memory->data(), memory->size()));
  ASSERT_FALSE(handle->StartRead(Range(1, memory->data(), memory->size()), false, memory).ok());
  EXPECT_EQ(memory.use_count(), 1) << "nothing has begun";
}

TEST_F(AioHandleTest, AReadPastTheEndIsRefusedAndChangesNothing) {
  Put("0123456789");
  const auto handle = Make({});
  std::string memory(100, 'x');
  const auto number = handle->StartRead(Range(5, memory.data(), 6), false);
  EXPECT_EQ(number.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(number.status().message()),
              HasSubstr("6 bytes at offset 5 of " + Path() + ": the file has 10 bytes"));
  EXPECT_EQ(memory, std::string(100, 'x'));
  EXPECT_EQ(handle->last(), 0u) << "a refused operation has no number";
  EXPECT_TRUE(handle->Wait(1, kLong));
  EXPECT_THAT(handle->Take().numbers, ElementsAre());
}

TEST_F(AioHandleTest, ANonFileIsRefusedByName) {
  const auto handle = Make({});
  char byte = 0;
  const auto missing = handle->StartRead(Range(0, &byte, 1), false);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(Path()));
  const TransferRange folder{.path = Path("no/file"), .memory = &byte, .bytes = 1};
  EXPECT_EQ(handle->StartWrite(folder, false).status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(mkfifo(Path().c_str(), 0600), 0);
  EXPECT_EQ(handle->StartRead(Range(0, &byte, 1), false).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(AioHandleTest, AFullDeviceIsAnErrorOfItsOperationAndOthersStillEnd) {
  std::atomic<bool> full{true};
  const auto choose = [&](const IoBlock& block, int64_t bytes) -> int64_t {
    return full && block.offset == 4 * 4096 ? -ENOSPC : bytes;
  };
  const auto handle = Make({.block_bytes = 4096, .queue_depth = 2}, Choosing(choose));
  const Arena arena = *Arena::Create(kMiB);
  for (const uint64_t shift : {0, 64}) {  // Directly, and through staging.
    full = true;
    char* const memory = arena.data() + shift;
    ASSERT_TRUE(handle->StartWrite(Range(0, memory, 20 * 4096), false).ok());
    const absl::Status status = Finish(handle.get());
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path()));
    full = false;
    ASSERT_TRUE(handle->StartWrite(Range(0, memory, 20 * 4096), true).ok());
    EXPECT_EQ(Finish(handle.get()), absl::OkStatus());
  }
}

TEST_F(AioHandleTest, AWriteThatCannotFitIsRefusedBeforeItsFirstByte) {
  Put("0123456789");
  const auto handle = Make({});
  // More than any disk; nothing of the memory is looked at.
  char byte = 0;
  ASSERT_TRUE(handle->StartWrite(Range(4, &byte, uint64_t{1} << 60), false).ok());
  const absl::Status status = Finish(handle.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path() + ": No space left on device"));
  EXPECT_EQ(Get(), "0123456789");
}

TEST_F(AioHandleTest, AFileThatBecomesShorterIsAnErrorOfTheRead) {
  Put(std::string(20 * 4096, 'a'));
  const auto choose = [](const IoBlock& block, int64_t bytes) -> int64_t {
    return block.offset == 4 * 4096 ? 0 : bytes;
  };
  const auto handle = Make({.block_bytes = 4096, .queue_depth = 2}, Choosing(choose));
  const Arena arena = *Arena::Create(kMiB);
  ASSERT_TRUE(handle->StartRead(Range(0, arena.data() + 8, 20 * 4096), false).ok());
  EXPECT_EQ(Finish(handle.get()).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(AioHandleTest, ValidationFindsALostWrite) {
  Put(std::string(20 * 4096, 'a'));
  const auto lost = [](const IoBlock& block, int64_t bytes) -> int64_t {
    if (block.offset == 4 * 4096) block.data[7] ^= 1;
    return bytes;
  };
  const auto handle = Make({.block_bytes = 4096, .queue_depth = 2}, Choosing(lost));
  const Arena arena = *Arena::Create(kMiB);
  std::string bytes = RandomBytes(20 * 4096, 1);
  std::memcpy(arena.data() + 8, bytes.data(), bytes.size());  // Staged: the memory stays right.
  ASSERT_TRUE(handle->StartWrite(Range(0, arena.data() + 8, bytes.size()), true).ok());
  const absl::Status status = Finish(handle.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("byte ", 4 * 4096 + 7)));
}

TEST_F(AioHandleTest, TheDestructorWaitsForStartedOperations) {
  std::string bytes = RandomBytes(3 * kMiB + 5, 1);
  {
    const auto handle = Make({.block_bytes = 4096, .queue_depth = 1});
    ASSERT_TRUE(handle->StartWrite(Range(0, bytes.data(), bytes.size()), false).ok());
  }
  EXPECT_TRUE(Get() == bytes);
}

TEST_F(AioHandleTest, WaitEndsWhenItsTimeHasPassed) {
  Mutex mu;
  CondVar opened;
  bool open = false;
  const auto choose = [&](const IoBlock&, int64_t bytes) {
    MutexLock lock(&mu);
    while (!open) opened.Wait(&mu);
    return bytes;
  };
  const auto handle = Make({}, Choosing(choose));
  const Arena arena = *Arena::Create(kMiB);
  ASSERT_TRUE(handle->StartWrite(Range(0, arena.data(), 4096), false).ok());
  EXPECT_FALSE(handle->Wait(1, std::chrono::milliseconds(1)));
  {
    MutexLock lock(&mu);
    open = true;
    opened.NotifyAll();
  }
  EXPECT_TRUE(handle->Wait(1, kLong));
  EXPECT_THAT(handle->Take().numbers, ElementsAre(1));
}

TEST_F(AioHandleTest, FilesWithoutDirectIoWork) {
  MemoryDisk disk;
  const auto handle = *AioHandle::Create({.block_bytes = 4096, .parallelism = 3}, &disk);
  ASSERT_TRUE(disk.MakeDirectory("/d").ok());
  std::string bytes = RandomBytes(100'001, 1);
  const std::string path = "/d/no-such-file-on-the-machine";
  const auto range = [&](char* memory) {
    return TransferRange{.path = path, .offset = 3, .memory = memory, .bytes = bytes.size()};
  };
  ASSERT_TRUE(handle->StartWrite(range(bytes.data()), true).ok());
  ASSERT_EQ(Finish(handle.get()), absl::OkStatus());
  std::string read(bytes.size(), '\0');
  ASSERT_TRUE(handle->StartRead(range(read.data()), true).ok());
  ASSERT_EQ(Finish(handle.get()), absl::OkStatus());
  EXPECT_TRUE(read == bytes);
}

TEST_F(AioHandleTest, OptionsOutOfRangeAreRefusedWithTheLimit) {
  const auto error = [](const AioHandleOptions& options) {
    const auto handle = AioHandle::Create(options);
    EXPECT_EQ(handle.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(handle.status().message());
  };
  EXPECT_EQ(error({.block_bytes = 1000}), "block_size 1000; use a multiple of 4096 bytes");
  EXPECT_EQ(error({.block_bytes = 0}), "block_size 0; use a multiple of 4096 bytes");
  EXPECT_EQ(error({.queue_depth = 0}), "queue_depth 0; use 1 to 4096");
  EXPECT_EQ(error({.parallelism = 65}), "intra_op_parallelism 65; use 1 to 64");
  char byte = 0;
  const auto handle = Make({});
  EXPECT_EQ(handle->StartWrite(Range(uint64_t{1} << 63, &byte, 1), false).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
