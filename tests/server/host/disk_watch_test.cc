// DiskWatch over disks that answer and over one that hangs; scrapes and /healthz next to it.
#include "server/host/disk_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/metrics/declarations.h"
#include "server/admin/admin_server.h"
#include "server/admin/exposition.h"
#include "tests/server/main/http_get.h"

namespace ballast::server {
namespace {

using testing::HasSubstr;
using testing::Not;

// Disks by path; those below /hung answer after Release only. Thread-safe.
class Disks {
 public:
  DiskBytes Read(const std::string& path) {
    MutexLock lock(&mu_);
    ++asked_;
    change_.NotifyAll();
    while (path == "/hung" && !released_) change_.Wait(&mu_);
    return {static_cast<double>(asked_), 100};
  }
  void Release() {
    MutexLock lock(&mu_);
    released_ = true;
    change_.NotifyAll();
  }
  int asked() {
    MutexLock lock(&mu_);
    return asked_;
  }
  // Waits until `count` questions came. False only when they never do.
  bool WaitUntilAsked(int count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    MutexLock lock(&mu_);
    while (asked_ < count && std::chrono::steady_clock::now() < end) {
      change_.WaitFor(&mu_, std::chrono::seconds(1));
    }
    return asked_ >= count;
  }

 private:
  Mutex mu_;
  CondVar change_;
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
  bool released_ ABSL_GUARDED_BY(mu_) = false;
};

class DiskWatchTest : public testing::Test {
 protected:
  DiskWatchTest() { DeclareMetrics(&registry_); }

  std::unique_ptr<DiskWatch> Start(const std::vector<DiskWatch::Directory>& directories) {
    DiskWatchOptions options;
    options.clock = &clock_;
    options.stop_grace = std::chrono::milliseconds(1);
    // The thread that hangs may outlive the test.
    options.read = [disks = disks_](const std::string& path) { return disks->Read(path); };
    options.interval = std::chrono::milliseconds(1);
    options.look_interval = std::chrono::milliseconds(1);
    options.oldest = [calls = calls_](const std::string& label) {
      return calls->Oldest([&](const std::string& path) { return path == "/" + label; });
    };
    options.say = [said = said_](const std::string& line) { said->Add(line); };
    return DiskWatch::Start(directories, std::move(options), &registry_);
  }
  bool WaitForScrape(const std::string& line) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (RenderMetrics(registry_).find(line) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  // Lines in the log. Thread-safe.
  class Said {
   public:
    void Add(const std::string& line) {
      MutexLock lock(&mu_);
      lines_.push_back(line);
    }
    std::vector<std::string> lines() {
      MutexLock lock(&mu_);
      return lines_;
    }
    // Waits until `count` lines came. False only when they never do.
    bool WaitFor(size_t count) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (lines().size() < count && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return lines().size() >= count;
    }

   private:
    Mutex mu_;
    std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  };

  FakeClock clock_;
  const std::shared_ptr<CallsUnderWay> calls_ = std::make_shared<CallsUnderWay>(&clock_);
  const std::shared_ptr<Said> said_ = std::make_shared<Said>();
  const std::shared_ptr<Disks> disks_ = std::make_shared<Disks>();
  MetricRegistry registry_;
};

TEST_F(DiskWatchTest, ADiskIsAskedAgainAndAgain) {
  const auto watch = Start({{"data", "/data"}});
  EXPECT_TRUE(WaitForScrape("ballast_disk_size_bytes{directory=\"data\"} 100\n"));
  EXPECT_TRUE(WaitForScrape("ballast_tier_capacity_bytes{tier=\"nvme\"} 100\n"));
  EXPECT_TRUE(WaitForScrape("ballast_disk_free_bytes{directory=\"data\"} "));
  EXPECT_TRUE(disks_->WaitUntilAsked(3));
  EXPECT_TRUE(WaitForScrape("ballast_disk_answers{directory=\"data\"} 1\n"));
}

TEST_F(DiskWatchTest, ADiskThatHangsHasNoBytesAndSoonNoAnswer) {
  const auto watch = Start({{"data", "/data"}, {"snapshot", "/hung"}});
  EXPECT_TRUE(WaitForScrape("ballast_disk_free_bytes{directory=\"data\"} "));
  EXPECT_TRUE(disks_->WaitUntilAsked(10));  // The other disk is still asked.
  EXPECT_THAT(RenderMetrics(registry_), HasSubstr("answers{directory=\"snapshot\"} 1\n"));
  clock_.Advance(std::chrono::seconds(31));
  // The first question may have been asked at the old time.
  EXPECT_TRUE(disks_->WaitUntilAsked(disks_->asked() + 2));
  EXPECT_TRUE(WaitForScrape("ballast_disk_answers{directory=\"snapshot\"} 0\n"));
  EXPECT_THAT(RenderMetrics(registry_), Not(HasSubstr("free_bytes{directory=\"snapshot\"}")));
  EXPECT_TRUE(watch->Last()[0].answers);
  EXPECT_EQ(watch->Last()[0].size_bytes, 100);
  EXPECT_EQ(watch->Last()[1].directory, "snapshot");
  EXPECT_FALSE(watch->Last()[1].answers);
  disks_->Release();
  EXPECT_TRUE(WaitForScrape("ballast_disk_answers{directory=\"snapshot\"} 1\n"));
  EXPECT_TRUE(WaitForScrape("ballast_disk_free_bytes{directory=\"snapshot\"} "));
}

TEST_F(DiskWatchTest, ADiskThatHangsHoldsUpNoScrapeNoProbeAndNoEnd) {
  auto watch = Start({{"data", "/data"}, {"snapshot", "/hung"}});
  EXPECT_TRUE(WaitForScrape("ballast_disk_free_bytes{directory=\"data\"} "));
  AdminPages pages;
  pages.metrics = &registry_;
  auto admin = AdminServer::Start({}, std::move(pages));
  ASSERT_TRUE(admin.ok()) << admin.status();
  const std::string address = "127.0.0.1:" + std::to_string((*admin)->port());
  for (int scrape = 0; scrape <= kAdminThreads; ++scrape) {
    EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("ballast_disk_answers"));
  }
  EXPECT_THAT(HttpGet(address, "/healthz"), HasSubstr("ok"));
  (*admin)->Stop();
  watch.reset();
  disks_->Release();
}

TEST_F(DiskWatchTest, ADiskThatAnswersAndEndsNoCallHangsAfterTenSeconds) {
  const auto watch = Start({{"data", "/data", "Rounds wait"}, {"snapshot", "/snapshot", "X wait"}});
  EXPECT_TRUE(WaitForScrape("ballast_disk_wait_seconds{directory=\"data\"} 0\n"));
  const uint64_t flush = calls_->Begin("a flush", "/data");
  clock_.Advance(std::chrono::seconds(9));
  EXPECT_TRUE(watch->Health().ok()) << watch->Health();
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(said_->WaitFor(1));
  const std::string hangs =
      "the data disk hangs: a flush of /data has not ended for 11 s. Rounds wait for it: look at "
      "the device and its mount (dmesg, findmnt -T /data)";
  EXPECT_EQ(said_->lines(), std::vector<std::string>{hangs});
  EXPECT_EQ(watch->Health(), absl::UnavailableError(hangs));
  EXPECT_TRUE(WaitForScrape("ballast_disk_answers{directory=\"data\"} 1\n"));
  EXPECT_THAT(RenderMetrics(registry_),
              HasSubstr("ballast_disk_wait_seconds{directory=\"data\"} 11\n"));
  EXPECT_THAT(RenderMetrics(registry_),
              HasSubstr("ballast_disk_wait_seconds{directory=\"snapshot\"} 0\n"));
  EXPECT_EQ(watch->Last()[0].waits, std::chrono::seconds(11));
  calls_->End(flush);
  EXPECT_TRUE(said_->WaitFor(2));
  EXPECT_EQ(said_->lines()[1], "the data disk ends calls again");
  EXPECT_TRUE(watch->Health().ok());
}

TEST_F(DiskWatchTest, ASnapshotDiskThatHangsStopsNoRounds) {
  const auto watch = Start({{"data", "/data"}, {"snapshot", "/snapshot", "Snapshots wait"}});
  calls_->Begin("a write", "/snapshot");
  clock_.Advance(std::chrono::seconds(60));
  EXPECT_TRUE(said_->WaitFor(1));
  EXPECT_THAT(said_->lines()[0], HasSubstr("60 s. Snapshots wait for it"));
  EXPECT_TRUE(watch->Health().ok());
  EXPECT_EQ(watch->Last()[1].waits, std::chrono::seconds(60));
}

TEST_F(DiskWatchTest, WhoAsksGetsTheNewestAnswerAndWaitsForNone) {
  const auto watch = Start({{"data", "/data"}, {"snapshot", "/hung"}});
  while (watch->Last()[0].free_bytes < 3) std::this_thread::yield();
  EXPECT_EQ(watch->Last()[1].size_bytes, 0);
  disks_->Release();
}

TEST_F(DiskWatchTest, AServerWithoutDirectoriesHasNoDisk) {
  const auto watch = Start({});
  EXPECT_THAT(RenderMetrics(registry_),
              HasSubstr("ballast_tier_capacity_bytes{tier=\"nvme\"} 0\n"));
  EXPECT_THAT(RenderMetrics(registry_), Not(HasSubstr("ballast_disk")));
}

TEST(ReadDisk, ADirectoryThatIsNotMadeYetIsOnTheDiskAboveIt) {
  EXPECT_GT(ReadDisk(testing::TempDir()).size, 0);
  EXPECT_EQ(ReadDisk(testing::TempDir() + "/none/such").size, ReadDisk(testing::TempDir()).size);
}

}  // namespace
}  // namespace ballast::server
