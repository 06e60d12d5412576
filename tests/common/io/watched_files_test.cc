// The messages about a slow disk, their frequency, and that nothing else changes.
#include "common/io/watched_files.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/memory_disk.h"

namespace ballast {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Every call of a file takes `call_takes`, and runs `in_call`.
class SlowDisk : public MemoryDisk {
 public:
  explicit SlowDisk(FakeClock* clock) : clock_(clock) {}
  milliseconds call_takes{0};
  std::function<void()> in_call = [] {};
  std::function<void(absl::Status)> open_write;

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) override {
    auto file = MemoryDisk::Open(path, options);
    if (!file.ok()) return file.status();
    return std::make_unique<SlowFile>(this, *std::move(file));
  }

 private:
  class SlowFile : public File {
   public:
    SlowFile(SlowDisk* disk, std::unique_ptr<File> below) : disk_(disk), below_(std::move(below)) {}
    absl::StatusOr<size_t> ReadAt(uint64_t offset, size_t bytes, void* to) override {
      disk_->Take();
      return below_->ReadAt(offset, bytes, to);
    }
    absl::Status WriteAt(uint64_t offset, absl::Span<const ConstBytes> parts) override {
      disk_->Take();
      return below_->WriteAt(offset, parts);
    }
    absl::Status Sync() override {
      disk_->Take();
      return below_->Sync();
    }
    absl::Status Allocate(uint64_t bytes) override {
      disk_->Take();
      return below_->Allocate(bytes);
    }
    // Ends when the test says so.
    void StartWrite(uint64_t, absl::Span<const ConstBytes>,
                    std::function<void(absl::Status)> done) override {
      disk_->Take();
      disk_->open_write = std::move(done);
    }
    absl::StatusOr<uint64_t> Size() override { return below_->Size(); }

   private:
    SlowDisk* const disk_;
    const std::unique_ptr<File> below_;
  };
  void Take() {
    clock_->Advance(call_takes);
    in_call();
  }

  FakeClock* const clock_;
};

class WatchedFiles : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(disk_.MakeDirectory("/d").ok());
    auto file = files_->Open("/d/slots", {.mode = OpenMode::kCreate});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }
  absl::Status Write() { return file_->WriteAt(0, {ConstBytes{data_.data(), data_.size()}}); }

  FakeClock clock_;
  SlowDisk disk_{&clock_};
  std::vector<std::string> warnings_;
  const std::shared_ptr<CallsUnderWay> calls_ = std::make_shared<CallsUnderWay>(&clock_);
  const std::unique_ptr<FileSystem> files_ = WatchedFileSystem(
      &disk_, &clock_, {}, [this](const std::string& text) { warnings_.push_back(text); }, calls_);
  std::unique_ptr<File> file_;
  std::string data_ = std::string(2 << 20, 'x');
};

TEST_F(WatchedFiles, ADiskThatIsFastEnoughIsNotTalkedAbout) {
  disk_.call_takes = milliseconds(1000);
  EXPECT_TRUE(Write().ok());
  EXPECT_TRUE(file_->Sync().ok());
  EXPECT_TRUE(warnings_.empty()) << warnings_.front();
}

TEST_F(WatchedFiles, ASlowFlushNamesFileAndTime) {
  disk_.call_takes = milliseconds(2300);
  EXPECT_TRUE(file_->Sync().ok());
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(warnings_[0],
            "the disk is slow: a flush of /d/slots took 2.3 s. Rounds wait for it: look at the "
            "device, and at what else uses it");
}

TEST_F(WatchedFiles, SlowWritesAndReadsSayHowMuch) {
  disk_.call_takes = milliseconds(1500);
  EXPECT_TRUE(Write().ok());
  clock_.Advance(seconds(31));
  std::string back(1 << 20, '\0');
  EXPECT_TRUE(file_->ReadAt(0, back.size(), back.data()).ok());
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[0].find("a write of 2MiB of /d/slots took 1.5 s"), std::string::npos)
      << warnings_[0];
  EXPECT_NE(warnings_[1].find("a read of 1MiB of /d/slots took 1.5 s"), std::string::npos)
      << warnings_[1];
}

TEST_F(WatchedFiles, CallsThatGoOnAreTimedUntilTheirEnd) {
  disk_.call_takes = milliseconds(1500);
  bool done = false;
  file_->StartWrite(0, {ConstBytes{data_.data(), data_.size()}}, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    done = true;
  });
  disk_.open_write(absl::OkStatus());
  EXPECT_TRUE(done);
  EXPECT_EQ(warnings_.size(), 1u);
}

// "a flush of /d/slots since 12 s" of the oldest call that has not ended; "" without one.
std::string Oldest(const CallsUnderWay& calls, const std::string& prefix = "") {
  const auto call = calls.Oldest([&](const std::string& path) { return path.find(prefix) == 0; });
  if (!call.has_value()) return "";
  return absl::StrCat(call->what, " of ", call->path, " since ",
                      std::chrono::duration_cast<seconds>(call->age).count(), " s");
}

TEST_F(WatchedFiles, ACallHasAnAgeUntilItEnds) {
  std::vector<std::string> seen;
  disk_.call_takes = seconds(12);
  disk_.in_call = [&] { seen.push_back(Oldest(*calls_)); };
  EXPECT_TRUE(file_->Sync().ok());
  EXPECT_TRUE(Write().ok());
  EXPECT_TRUE(file_->ReadAt(0, 1, data_.data()).ok());
  EXPECT_EQ(seen, (std::vector<std::string>{"a flush of /d/slots since 12 s",
                                            "a write of /d/slots since 12 s",
                                            "a read of /d/slots since 12 s"}));
  EXPECT_EQ(Oldest(*calls_), "");
  disk_.FailNext(MemoryDisk::Operation::kSync, "/d/slots", EIO);
  EXPECT_FALSE(file_->Sync().ok());
  EXPECT_EQ(Oldest(*calls_), "") << "one that failed has ended";
}

TEST_F(WatchedFiles, AWriteThatNeverEndsGetsOlderAndOlder) {
  bool done = false;
  file_->StartWrite(0, {ConstBytes{data_.data(), data_.size()}},
                    [&](const absl::Status&) { done = true; });
  clock_.Advance(seconds(7));
  const uint64_t younger = calls_->Begin("a transaction", "/meta");
  clock_.Advance(seconds(4));
  EXPECT_EQ(Oldest(*calls_), "a write of /d/slots since 11 s");
  EXPECT_EQ(Oldest(*calls_, "/meta"), "a transaction of /meta since 4 s");
  EXPECT_EQ(Oldest(*calls_, "/snapshots"), "");
  disk_.open_write(absl::OkStatus());
  EXPECT_TRUE(done);
  EXPECT_EQ(Oldest(*calls_), "a transaction of /meta since 4 s");
  EXPECT_EQ(calls_->End(younger), seconds(4));
}

TEST_F(WatchedFiles, CallsWhoseTimeGrowsWithTheFileHaveNoAge) {
  disk_.in_call = [&] { EXPECT_EQ(Oldest(*calls_), ""); };
  EXPECT_TRUE(file_->Allocate(1 << 20).ok());
}

TEST_F(WatchedFiles, SaysItOnceInAWhileAndHowOftenItWasSilent) {
  disk_.call_takes = milliseconds(2000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(file_->Sync().ok());
  EXPECT_EQ(warnings_.size(), 1u);
  clock_.Advance(seconds(30));
  EXPECT_TRUE(file_->Sync().ok());
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[1].find("took 2.0 s (and 9 other calls were slow)"), std::string::npos)
      << warnings_[1];
}

TEST_F(WatchedFiles, ErrorsOfTheDiskComeThrough) {
  disk_.FailNext(MemoryDisk::Operation::kSync, "/d/slots", EIO);
  EXPECT_EQ(file_->Sync().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ballast
