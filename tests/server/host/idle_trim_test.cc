// IdleTrim in the time of a played executor.
#include "server/host/idle_trim.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

namespace ballast::server {
namespace {

// Runs posted work when the test says so.
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

constexpr uint64_t kMib = 1 << 20;

// A process whose memory is `used`, and what malloc keeps.
struct Process {
  PlayedExecutor executor;
  uint64_t used = 100 * kMib;
  uint64_t kept = 0;
  int trims = 0;
  std::shared_ptr<IdleTrim> trim = IdleTrim::Start({.resident = [this] { return used + kept; },
                                                    .trim =
                                                        [this] {
                                                          ++trims;
                                                          kept = 0;
                                                        }},
                                                   &executor);

  void Intervals(int count) {
    for (int i = 0; i < count; ++i) executor.RunNext();
  }
};

TEST(IdleTrim, TrimsInTheFirstQuietIntervalAfterTheProcessHasGrown) {
  Process process;
  process.kept = 7 * kMib;
  process.Intervals(3);
  EXPECT_EQ(process.trims, 0);  // Too little.
  process.kept = 300 * kMib;
  process.Intervals(1);
  EXPECT_EQ(process.trims, 0);  // Not quiet.
  process.kept += 9 * kMib;     // Less than a 32nd.
  process.Intervals(1);
  EXPECT_EQ(process.trims, 1);
  process.Intervals(100);
  EXPECT_EQ(process.trims, 1);
}

TEST(IdleTrim, MemoryThatIsInUseIsAskedForOnce) {
  Process process;
  process.used += 1000 * kMib;  // A job.
  process.Intervals(100);
  EXPECT_EQ(process.trims, 1);
  process.used -= 500 * kMib;
  process.kept += 100 * kMib;
  process.Intervals(2);
  EXPECT_EQ(process.trims, 1);  // Smaller than after the trim: the level has to fall first.
  process.kept += 100 * kMib;
  process.Intervals(2);
  EXPECT_EQ(process.trims, 2);
}

TEST(IdleTrim, MemoryThatComesBackIsLeftAloneForLongerAndLonger) {
  Process process;
  int trims_of_the_first_hundred = 0;
  for (int i = 0; i < 1000; ++i) {
    process.kept = 64 * kMib;  // The buffers of a round.
    process.Intervals(1);
    if (i == 99) trims_of_the_first_hundred = process.trims;
  }
  EXPECT_LT(trims_of_the_first_hundred, 12);
  EXPECT_NEAR(process.trims - trims_of_the_first_hundred, 900 / 16, 4);
  process.kept = 0;
  process.Intervals(80);
  const int before = process.trims;
  process.kept = 64 * kMib;
  process.Intervals(2);
  EXPECT_EQ(process.trims, before + 1);  // Memory from rare peaks is given back at once.
}

}  // namespace
}  // namespace ballast::server
