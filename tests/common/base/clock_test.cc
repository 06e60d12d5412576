// Tests of common/base/clock.h.
#include "common/base/clock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ballast {
namespace {

TEST(ClockTest, RealClockNeverGoesBack) {
  const auto first = RealClock::Get()->Now();
  const auto second = RealClock::Get()->Now();
  EXPECT_GE(second, first);
  EXPECT_GT(first.count(), 0);
}

TEST(ClockTest, FakeClockStandsStillUntilAdvanced) {
  FakeClock clock(std::chrono::seconds(5));
  EXPECT_EQ(clock.Now(), std::chrono::seconds(5));
  EXPECT_EQ(clock.Now(), std::chrono::seconds(5));
  clock.Advance(std::chrono::milliseconds(250));
  EXPECT_EQ(clock.Now(), std::chrono::milliseconds(5250));
}

TEST(ClockTest, FakeClockAddsUpAdvancesOfManyThreads) {
  FakeClock clock;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 1000; ++step) clock.Advance(std::chrono::nanoseconds(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clock.Now(), std::chrono::nanoseconds(4000));
}

}  // namespace
}  // namespace ballast
