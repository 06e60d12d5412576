// IoEngine with the kernel's own asynchronous I/O and with a backend that injects faults.
#include "common/io/io_engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/io/arena.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Bytes in memory. Each transfer may be short, interrupted or fail, as `fault` says.
class FaultyBackend : public IoBackend {
 public:
  // Returns the result of a block instead of its bytes; none: all of them are transferred.
  using Fault = std::function<std::optional<int64_t>(const IoBlock&)>;

  FaultyBackend(int depth, std::vector<char>* disk, Fault fault)
      : depth_(depth), disk_(disk), fault_(std::move(fault)) {}

  int Submit(absl::Span<const IoBlock> blocks) override {
    MutexLock lock(&mu_);
    if (refuse_next_.exchange(false)) return -EAGAIN;
    // Never more than two at a time: callers must come again.
    int taken = 0;
    for (const IoBlock& block : blocks) {
      if (taken == 2 || events_.size() >= depth_) break;
      events_.push_back({block.id, Transfer(block)});
      ++taken;
    }
    most_ = std::max(most_, events_.size());
    arrived_.NotifyAll();
    return taken;
  }

  int Reap(absl::Span<IoEvent> events) override {
    MutexLock lock(&mu_);
    while (events_.empty()) arrived_.Wait(&mu_);
    events[0] = events_.back();  // The newest first: order is not promised.
    events_.pop_back();
    return 1;
  }

  std::atomic<bool> refuse_next_{false};
  size_t most() {
    MutexLock lock(&mu_);
    return most_;
  }

 private:
  int64_t Transfer(const IoBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const std::optional<int64_t> fault = fault_ ? fault_(block) : std::nullopt;
    const auto bytes = static_cast<size_t>(std::max<int64_t>(0, fault.value_or(block.bytes)));
    if (block.kind == IoKind::kRead) std::memcpy(block.data, disk_->data() + block.offset, bytes);
    if (block.kind == IoKind::kWrite) std::memcpy(disk_->data() + block.offset, block.data, bytes);
    return fault.value_or(static_cast<int64_t>(block.bytes));
  }

  const size_t depth_;
  std::vector<char>* const disk_;
  const Fault fault_;
  Mutex mu_;
  CondVar arrived_;
  std::vector<IoEvent> events_ ABSL_GUARDED_BY(mu_);
  size_t most_ ABSL_GUARDED_BY(mu_) = 0;
};

std::vector<char> RandomBytes(size_t bytes) {
  std::vector<char> out(bytes);
  std::mt19937_64 random(bytes);
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

class IoEngineTest : public testing::Test {
 protected:
  std::unique_ptr<IoEngine> Engine(int depth, FaultyBackend::Fault fault = nullptr) {
    auto backend = std::make_unique<FaultyBackend>(depth, &disk_, std::move(fault));
    backend_ = backend.get();
    return *IoEngine::Create({.block_bytes = 4096, .queue_depth = depth}, std::move(backend));
  }

  std::vector<char> disk_ = RandomBytes(kMiB);
  FaultyBackend* backend_ = nullptr;
};

TEST_F(IoEngineTest, ManyRequestsOfManyBlocksAllArriveWithinTheDepth) {
  const std::vector<char> content = disk_;
  std::vector<char> to(kMiB);
  std::atomic<int> left{16};
  {
    const auto engine = Engine(8);
    for (int i = 0; i < 16; ++i) {
      engine->Submit({.kind = IoKind::kRead,
                      .path = "disk",
                      .offset = i * 65536u,
                      .data = to.data() + i * 65536,
                      .bytes = 65536,
                      .done = [&](const absl::Status& status) {
                        EXPECT_TRUE(status.ok()) << status;
                        --left;
                      }});
    }
  }  // Waits.
  EXPECT_EQ(left, 0);
  EXPECT_EQ(to, content);
}

TEST_F(IoEngineTest, ShortAndInterruptedTransfersAreFinished) {
  std::map<uint64_t, int> seen;
  const auto engine = Engine(4, [&seen](const IoBlock& block) -> std::optional<int64_t> {
    // Every offset is met with an interruption, then with nothing wrong.
    if (++seen[block.offset] == 1) return -EINTR;
    return std::nullopt;
  });
  const std::vector<char> from = RandomBytes(100 * 4096);
  std::vector<char> copy = from;
  EXPECT_TRUE(engine
                  ->Run({.kind = IoKind::kWrite,
                         .path = "disk",
                         .offset = 8192,
                         .data = copy.data(),
                         .bytes = copy.size()})
                  .ok());
  EXPECT_EQ(std::memcmp(disk_.data() + 8192, from.data(), from.size()), 0);
}

TEST_F(IoEngineTest, ABusyDeviceIsAskedAgain) {
  const auto engine = Engine(4);
  backend_->refuse_next_ = true;
  std::vector<char> to(8192);
  EXPECT_TRUE(
      engine->Run({.kind = IoKind::kRead, .path = "d", .data = to.data(), .bytes = 8192}).ok());
  EXPECT_EQ(std::memcmp(to.data(), disk_.data(), to.size()), 0);
}

TEST_F(IoEngineTest, AnErrorOfOneBlockIsTheRequestsAndTheEngineGoesOn) {
  const auto engine = Engine(4, [](const IoBlock& block) -> std::optional<int64_t> {
    if (block.offset == 12288) return -EIO;
    return std::nullopt;
  });
  std::vector<char> to(65536);
  const absl::Status bad =
      engine->Run({.kind = IoKind::kRead, .path = "d", .data = to.data(), .bytes = 65536});
  EXPECT_EQ(bad.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(bad.message()), testing::HasSubstr("offset 12288 of d"));
  EXPECT_TRUE(
      engine->Run({.kind = IoKind::kRead, .path = "d", .data = to.data(), .bytes = 4096}).ok());
  EXPECT_EQ(engine->pending(), 0u);
}

TEST(IoEngineOptionsTest, BadOptionsAreRefused) {
  EXPECT_EQ(IoEngine::Create({.block_bytes = 1000}, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(IoEngine::Create({.queue_depth = 0}, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeLibaioBackend(1 << 30).ok(), false);
}

class LibaioTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "io_engine_" + std::to_string(getpid());
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    if (descriptor_ < 0) {  // tmpfs of older kernels
      descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    }
    ASSERT_GE(descriptor_, 0) << std::strerror(errno);
    engine_ = *IoEngine::Create({.block_bytes = 65536, .queue_depth = 4}, *MakeLibaioBackend(4));
  }
  void TearDown() override {
    engine_.reset();
    close(descriptor_);
    std::filesystem::remove(path_);
  }

  IoRequest Make(IoKind kind, void* data, size_t bytes) const {
    return {.kind = kind, .descriptor = descriptor_, .path = path_, .data = data, .bytes = bytes};
  }

  std::string path_;
  int descriptor_ = -1;
  std::unique_ptr<IoEngine> engine_;
};

TEST_F(LibaioTest, FlushedBytesAreReadBack) {
  const Arena memory = *Arena::Create(2 * kMiB);
  const std::vector<char> content = RandomBytes(kMiB);
  std::memcpy(memory.data(), content.data(), kMiB);
  ASSERT_TRUE(engine_->Run(Make(IoKind::kWrite, memory.data(), kMiB)).ok());
  ASSERT_TRUE(engine_->Run(Make(IoKind::kSync, nullptr, 0)).ok());
  ASSERT_TRUE(engine_->Run(Make(IoKind::kRead, memory.data() + kMiB, kMiB)).ok());
  EXPECT_EQ(std::memcmp(memory.data() + kMiB, content.data(), kMiB), 0);
}

TEST_F(LibaioTest, PastTheEndAndABadDescriptorAreErrors) {
  const Arena memory = *Arena::Create(kMiB);
  EXPECT_EQ(engine_->Run(Make(IoKind::kRead, memory.data(), 4096)).code(),
            absl::StatusCode::kOutOfRange);
  IoRequest bad = Make(IoKind::kRead, memory.data(), 3 * 65536);
  bad.descriptor = -1;
  EXPECT_EQ(engine_->Run(std::move(bad)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(engine_->pending(), 0u);
}

}  // namespace
}  // namespace ballast
