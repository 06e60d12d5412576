// TlsLoader: good files are handed on, bad ones change nothing, and two threads do not meet.
#include "common/tls/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/common/tls/certificates.h"

namespace ballast {
namespace {

using testing::HasSubstr;

constexpr int64_t kNow = 1'700'000'000;

class TlsLoaderTest : public testing::Test {
 protected:
  ~TlsLoaderTest() override { std::filesystem::remove_all(folder_); }

  TlsLoaderOptions Options() {
    TlsLoaderOptions options;
    options.paths = {folder_ + "/ca.pem", folder_ + "/tls.pem", folder_ + "/tls.key"};
    options.labels = {"CA", "CERT", "KEY"};
    options.expected = {TlsEnd::kServer, "spiffe://ballast/server/0"};
    options.now_s = [this] { return now_s_.load(); };
    options.publish = [this](const TlsFiles& files) {
      ++published_;
      newest_ = files.key.text;
      return absl::OkStatus();
    };
    return options;
  }

  const std::string folder_ = MakeFolder();
  const TestAuthority authority_;
  std::atomic<int64_t> now_s_{kNow};
  int published_ = 0;
  std::string newest_;  // the key
};

TEST_F(TlsLoaderTest, LooksAgainOnlyAfterAChange) {
  TlsLoader loader(Options());
  WriteFiles(folder_, authority_.Files());
  ASSERT_TRUE(loader.Load().ok());
  EXPECT_TRUE(loader.LoadIfChanged().ok());
  EXPECT_EQ(published_, 1);
  const TlsFiles next = authority_.Files();
  WriteFiles(folder_, next);
  EXPECT_TRUE(loader.LoadIfChanged().ok());
  EXPECT_EQ(published_, 2);
  EXPECT_EQ(newest_, next.key.text);
  EXPECT_EQ(loader.state().loads, 2U);
}

TEST_F(TlsLoaderTest, BadFilesChangeNothingAndAreNamed) {
  TlsLoader loader(Options());
  const TlsFiles good = authority_.Files();
  WriteFiles(folder_, good);
  ASSERT_TRUE(loader.Load().ok());
  const struct {
    TlsFiles files;
    const char* says;
  } bad[] = {{{good.ca, {"tls.pem", good.certificate.text.substr(0, 200)}, good.key}, "tls.pem"},
             {{good.ca, authority_.Files().certificate, good.key}, "tls.key: is not the key"},
             {authority_.Files({.not_after_s = kNow - 1}), "expired at"},
             {authority_.Files({.not_before_s = kNow + 60}), "is not valid before"},
             {TestAuthority("Another CA").Files({.uris = {"spiffe://b/server/0"}}), "URI names"},
             {{good.ca, good.certificate, {"tls.key", ""}}, "holds no private key"}};
  for (const auto& [files, says] : bad) {
    WriteFiles(folder_, files);
    EXPECT_THAT(std::string(loader.LoadIfChanged().message()), HasSubstr(says));
    EXPECT_THAT(loader.state().error, HasSubstr(says));
    EXPECT_EQ(published_, 1);
    EXPECT_EQ(loader.state().facts.uris.size(), 1U);
  }
  WriteFiles(folder_, good);
  EXPECT_TRUE(loader.LoadIfChanged().ok());
  EXPECT_EQ(loader.state().error, "");
  EXPECT_EQ(published_, 2);
}

TEST_F(TlsLoaderTest, ACertificateOfTheFutureIsTakenWhenItsTimeComes) {
  TlsLoader loader(Options());
  WriteFiles(folder_, authority_.Files({.not_before_s = kNow + 60}));
  EXPECT_EQ(loader.Load().code(), absl::StatusCode::kFailedPrecondition);
  now_s_ = kNow + 60;
  EXPECT_TRUE(loader.LoadIfChanged().ok());
  EXPECT_EQ(published_, 1);
}

TEST_F(TlsLoaderTest, FilesThatCannotBePassedOnAreTriedAgain) {
  TlsLoaderOptions options = Options();
  bool works = false;
  options.publish = [&works](const TlsFiles&) {
    return works ? absl::OkStatus() : absl::InternalError("disk full");
  };
  TlsLoader loader(options);
  WriteFiles(folder_, authority_.Files());
  EXPECT_EQ(loader.Load().code(), absl::StatusCode::kInternal);
  works = true;
  EXPECT_TRUE(loader.LoadIfChanged().ok());
}

// For the thread sanitizer; and one load at a time is a promise to `publish`.
TEST_F(TlsLoaderTest, ThreadsLoadOneAfterTheOther) {
  constexpr int kThreads = 4;
  constexpr int kLoads = 10;
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  TlsLoaderOptions options = Options();
  options.publish = [&](const TlsFiles&) {
    if (inside.fetch_add(1) != 0) met = true;
    std::this_thread::yield();
    inside.fetch_sub(1);
    return absl::OkStatus();
  };
  WriteFiles(folder_, authority_.Files());
  TlsLoader loader(options);
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int load = 0; load < kLoads; ++load) {
        EXPECT_TRUE((i % 2 == 0 ? loader.Load() : loader.LoadIfChanged()).ok());
        EXPECT_EQ(loader.state().refusals, 0U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(met);
  EXPECT_GE(loader.state().loads, 2U * kLoads);
}

}  // namespace
}  // namespace ballast
