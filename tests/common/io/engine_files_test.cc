// Files whose reads and writes go through an engine: the same bytes and errors as without one.
#include "common/io/engine_files.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "common/io/arena.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// The real backend; counts blocks, and gives the n-th of them `result` when asked to.
class CountingBackend : public IoBackend {
 public:
  struct Shared {
    std::atomic<int> made{0};
    std::atomic<int> blocks{0};
    std::atomic<int> fail_block{-1};
    std::atomic<int> result{0};
  };

  CountingBackend(std::unique_ptr<IoBackend> below, Shared* shared)
      : below_(std::move(below)), shared_(shared) {}

  int Submit(absl::Span<const IoBlock> blocks) override {
    const int taken = below_->Submit(blocks);
    for (int i = 0; i < taken; ++i) {
      if (shared_->blocks++ == shared_->fail_block) failing_ = static_cast<int>(blocks[i].id);
    }
    return taken;
  }
  int Reap(absl::Span<IoEvent> events) override {
    const int count = below_->Reap(events);
    for (int i = 0; i < count; ++i) {
      int failing = static_cast<int>(events[i].id);
      if (failing_.compare_exchange_strong(failing, -1)) events[i].result = shared_->result;
    }
    return count;
  }

 private:
  const std::unique_ptr<IoBackend> below_;
  Shared* const shared_;
  std::atomic<int> failing_{-1};
};

class EngineFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = "engine_files_XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = std::filesystem::absolute(path).string();
    if (!PosixFileSystem()->DirectIo(directory_)) GTEST_SKIP() << "no direct I/O here";
    files_ = EngineFileSystem(
        PosixFileSystem(), {.block_bytes = kMiB, .queue_depth = 3},
        [this](int depth) -> absl::StatusOr<std::unique_ptr<IoBackend>> {
          absl::StatusOr<std::unique_ptr<IoBackend>> below = MakeLibaioBackend(depth);
          if (!below.ok()) return below.status();
          ++shared_.made;
          return std::make_unique<CountingBackend>(*std::move(below), &shared_);
        });
    memory_ = *Arena::Create(8 * kMiB);
    std::mt19937_64 random(1);
    for (size_t i = 0; i < 4 * kMiB; ++i) memory_.data()[i] = static_cast<char>(random());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<File> Open(const char* name, bool direct = true) {
    auto file =
        files_->Open(directory_ + "/" + name, {.mode = OpenMode::kCreate, .direct = direct});
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  absl::Status Write(File* file, uint64_t offset, std::vector<ConstBytes> parts) {
    absl::Status result;
    Await([&](auto done) {
      file->StartWrite(offset, parts, [&result, done](absl::Status status) {
        result = std::move(status);
        done();
      });
    });
    return result;
  }
  absl::StatusOr<size_t> Read(File* file, uint64_t offset, size_t bytes) {
    absl::StatusOr<size_t> result;
    Await([&](auto done) {
      file->StartRead(offset, bytes, memory_.data() + 4 * kMiB,
                      [&result, done](absl::StatusOr<size_t> count) {
                        result = std::move(count);
                        done();
                      });
    });
    return result;
  }
  bool ReadIs(size_t from, size_t bytes) const {
    return std::memcmp(memory_.data() + 4 * kMiB, memory_.data() + from, bytes) == 0;
  }

  template <typename Start>
  static void Await(const Start& start) {
    Mutex mu;
    CondVar changed;
    int ended = 0;
    start([&] {
      MutexLock lock(&mu);
      ++ended;
      changed.NotifyAll();
    });
    MutexLock lock(&mu);
    while (ended == 0) changed.Wait(&mu);
    EXPECT_EQ(ended, 1);
  }

  std::string directory_;
  CountingBackend::Shared shared_;
  std::unique_ptr<FileSystem> files_;
  Arena memory_;
};

TEST_F(EngineFilesTest, WritesConsecutivePartsAndReadsThemBack) {
  const auto file = Open("a");
  const char* const data = memory_.data();
  ASSERT_TRUE(Write(file.get(), 4096, {{data, 4096}, {data + 4096, 3 * kMiB - 4096}}).ok());
  EXPECT_EQ(shared_.blocks, 4);  // Of at most 1 MiB.
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(*Read(file.get(), 4096, 3 * kMiB), 3 * kMiB);
  EXPECT_TRUE(ReadIs(0, 3 * kMiB));
  EXPECT_EQ(*file->Size(), 3 * kMiB + 4096);
}

TEST_F(EngineFilesTest, OneEngineServesAllFilesOfADevice) {
  const auto first = Open("a");
  const auto second = Open("b");
  ASSERT_TRUE(Write(first.get(), 0, {{memory_.data(), 4096}}).ok());
  ASSERT_TRUE(Write(second.get(), 0, {{memory_.data(), 4096}}).ok());
  EXPECT_EQ(shared_.made, 1);
  EXPECT_EQ(shared_.blocks, 2);
}

TEST_F(EngineFilesTest, AFileOutlivesTheFileSystem) {
  const auto file = Open("a");
  files_.reset();
  EXPECT_TRUE(Write(file.get(), 0, {{memory_.data(), kMiB}}).ok());
}

TEST_F(EngineFilesTest, TheEndOfTheFileCutsARead) {
  const auto file = Open("a");
  ASSERT_TRUE(Write(file.get(), 0, {{memory_.data(), kMiB}}).ok());
  EXPECT_EQ(*Read(file.get(), 0, 2 * kMiB), kMiB);
  EXPECT_TRUE(ReadIs(0, kMiB));
  EXPECT_EQ(*Read(file.get(), 2 * kMiB, kMiB), 0u);
}

TEST_F(EngineFilesTest, UnalignedBuffersAreWrittenWithoutTheEngine) {
  const auto file = Open("a");
  ASSERT_TRUE(Write(file.get(), 5, {{memory_.data() + 1, 9000}}).ok());
  EXPECT_EQ(*Read(file.get(), 5, 9000), 9000u);
  EXPECT_TRUE(ReadIs(1, 9000));
  const auto cached = Open("cached", /*direct=*/false);
  ASSERT_TRUE(Write(cached.get(), 0, {{memory_.data(), kMiB}}).ok());
  EXPECT_EQ(*Read(cached.get(), 0, kMiB), kMiB);
  EXPECT_EQ(shared_.blocks, 0);
}

TEST_F(EngineFilesTest, AnErrorOfAnyBlockIsTheWritesAndNamesTheFile) {
  const auto file = Open("a");
  shared_.fail_block = 2;
  shared_.result = -EIO;
  const absl::Status status =
      Write(file.get(), 0, {{memory_.data(), 4096}, {memory_.data() + 4096, 3 * kMiB}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr(directory_ + "/a"));
}

TEST_F(EngineFilesTest, NoWriteOfNothingIsForgotten) {
  const auto file = Open("a");
  EXPECT_TRUE(Write(file.get(), 0, {}).ok());
}

TEST(EngineFiles, WithoutABackendEverythingIsDoneAtOnce) {
  const auto files = EngineFileSystem(
      PosixFileSystem(), {}, [](int) -> absl::StatusOr<std::unique_ptr<IoBackend>> {
        return absl::ResourceExhaustedError("no room for another queue");
      });
  const auto memory = Arena::Create(kMiB);
  auto file = files->Open("engine_files_none", {.mode = OpenMode::kCreate, .direct = true});
  ASSERT_TRUE(file.ok()) << file.status();
  bool written = false;
  (*file)->StartWrite(0, {ConstBytes{memory->data(), kMiB}},
                      [&](absl::Status status) { written = status.ok(); });
  EXPECT_TRUE(written);
  EXPECT_TRUE(files->Remove("engine_files_none").ok());
}

}  // namespace
}  // namespace ballast
