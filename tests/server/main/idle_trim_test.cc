// IdleTrim in the time of a played executor.
#include "server/idle_trim.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

namespace ballast::server {
namespace {

// Runs what is posted when the test says so.
class PlayedExecutor : public Executor {
 public:
  bool Post(std::function<void()> task) override { return PostAfter({}, std::move(task)); }
  bool PostAfter(std::chrono::nanoseconds, std::function<void()> task) override {
    next_ = std::move(task);
    return true;
  }
  void Shutdown() override {}
  bool IsOwnThread() const override { return true; }
  bool IsOpen() override { return true; }
  void RunNext() { std::exchange(next_, nullptr)(); }

 private:
  std::function<void()> next_;
};

TEST(IdleTrim, TrimsOnceInTheFirstQuietIntervalAfterLargeRequests) {
  PlayedExecutor executor;
  uint64_t released = 0;
  int trims = 0;
  IdleTrimOptions options;
  options.released = [&] { return std::exchange(released, 0); };
  options.trim = [&] { ++trims; };
  const auto trim = IdleTrim::Start(options, &executor);
  executor.RunNext();
  EXPECT_EQ(trims, 0);
  released = 1 << 20;
  executor.RunNext();
  executor.RunNext();
  EXPECT_EQ(trims, 0);  // Too little.
  released = 7 << 20;
  executor.RunNext();
  EXPECT_EQ(trims, 0);  // Not quiet.
  executor.RunNext();
  EXPECT_EQ(trims, 1);
  for (int i = 0; i < 3; ++i) executor.RunNext();
  EXPECT_EQ(trims, 1);
}

// Runs `intervals` with the same release in each; how often it trims.
int TrimsOf(IdleTrimOptions options, uint64_t released, int intervals) {
  PlayedExecutor executor;
  int trims = 0;
  options.released = [&] { return released; };
  options.trim = [&] { ++trims; };
  const auto trim = IdleTrim::Start(options, &executor);
  for (int i = 0; i < intervals; ++i) executor.RunNext();
  return trims;
}

TEST(IdleTrim, ATrickleOfSmallRequestsDelaysNoTrim) {
  PlayedExecutor executor;
  uint64_t released = 9 << 20;
  int trims = 0;
  IdleTrimOptions options;
  options.released = [&] { return std::exchange(released, 200 << 10); };
  options.trim = [&] { ++trims; };
  const auto trim = IdleTrim::Start(options, &executor);
  executor.RunNext();
  EXPECT_EQ(trims, 0);
  executor.RunNext();
  EXPECT_EQ(trims, 1);
}

TEST(IdleTrim, ASteadyRateOfAnySizeIsTrimmedNowAndThen) {
  EXPECT_EQ(TrimsOf({}, uint64_t{1} << 30, 33), 1);
  EXPECT_EQ(TrimsOf({}, uint64_t{1} << 30, 32), 0);
  EXPECT_EQ(TrimsOf({}, 1 << 20, 330), 10);
  // Hellos alone: seldom.
  EXPECT_EQ(TrimsOf({}, 2 << 10, 4095), 0);
  EXPECT_EQ(TrimsOf({}, 2 << 10, 4096), 1);
}

}  // namespace
}  // namespace ballast::server
