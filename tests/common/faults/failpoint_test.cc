// Tests of common/faults/failpoint.h.
#include "common/faults/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Plain() { BALLAST_FAILPOINT("test.plain"); }

// The same name twice is one failpoint.
void PlainAgain() { BALLAST_FAILPOINT("test.plain"); }

absl::Status Fallible() {
  BALLAST_FAILPOINT_RETURN("test.fallible");
  return absl::OkStatus();
}

absl::StatusOr<int> FallibleValue() {
  BALLAST_FAILPOINT_RETURN("test.value");
  return 42;
}

class FailpointTest : public ::testing::Test {
 protected:
  FailpointTest() { Failpoints::Seed(0); }
  ~FailpointTest() override { Failpoints::Reset(); }

  // '1' for each of `count` hits of test.fallible that failed, '0' for the others.
  static std::string Hits(const std::string& terms, int count) {
    EXPECT_TRUE(Failpoints::Configure("test.fallible=" + terms).ok()) << terms;
    std::string hits;
    for (int i = 0; i < count; ++i) hits += Fallible().ok() ? '0' : '1';
    return hits;
  }
  static std::string Refusal(const std::string& text) {
    const absl::Status status = Failpoints::Configure(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  }
};

TEST_F(FailpointTest, NamesAreThereBeforeAnythingRan) {
  EXPECT_THAT(Failpoints::Names(), ElementsAre("test.fallible", "test.plain", "test.value"));
}

TEST_F(FailpointTest, NothingHappensUntilSetAndAfterReset) {
  Plain();
  EXPECT_TRUE(Fallible().ok());
  EXPECT_EQ(FallibleValue().value(), 42);
  ASSERT_TRUE(Failpoints::Configure("test.fallible=return(ABORTED)").ok());
  EXPECT_FALSE(Fallible().ok());
  ASSERT_TRUE(Failpoints::Configure("test.fallible=off").ok());
  EXPECT_TRUE(Fallible().ok());
  ASSERT_TRUE(Failpoints::Configure("test.fallible=return(ABORTED)").ok());
  Failpoints::Reset();
  EXPECT_TRUE(Fallible().ok());
}

TEST_F(FailpointTest, ReturnGivesTheCodeAndTheName) {
  ASSERT_TRUE(
      Failpoints::Configure(" test.fallible = return(UNAVAILABLE) ; test.value=return(DATA_LOSS);")
          .ok());
  EXPECT_EQ(Fallible(), absl::UnavailableError("failpoint test.fallible"));
  EXPECT_EQ(FallibleValue().status(), absl::DataLossError("failpoint test.value"));
}

TEST_F(FailpointTest, CountsAndSequencesAreTakenInOrder) {
  EXPECT_EQ(Hits("return(ABORTED)", 3), "111");
  EXPECT_EQ(Hits("1*return(ABORTED)", 3), "100");
  EXPECT_EQ(Hits("2*off->1*return(ABORTED)", 5), "00100");
  EXPECT_EQ(Hits("1*return(ABORTED) -> 2*off -> return(ABORTED)", 5), "10011");
  EXPECT_EQ(Hits("0*return(ABORTED)", 2), "00");
  // Setting anew counts anew.
  EXPECT_EQ(Hits("1*return(ABORTED)", 1), "1");
  EXPECT_EQ(Hits("1*return(ABORTED)", 1), "1");
}

TEST_F(FailpointTest, PercentIsASeededShareOfTheHits) {
  EXPECT_EQ(Hits("0%return(ABORTED)", 50), std::string(50, '0'));
  EXPECT_EQ(Hits("100%return(ABORTED)", 50), std::string(50, '1'));
  Failpoints::Seed(7);
  const std::string first = Hits("5%return(ABORTED)", 4000);
  const auto share = std::count(first.begin(), first.end(), '1');
  EXPECT_GT(share, 140);  // 200 expected, standard deviation 14; the seed is fixed.
  EXPECT_LT(share, 260);
  EXPECT_NE(Hits("5%return(ABORTED)", 4000), first);
  Failpoints::Seed(7);
  EXPECT_EQ(Hits("5%return(ABORTED)", 4000), first);
  // The count is of hits taken, not of hits offered.
  const std::string three = Hits("20%3*return(ABORTED)", 200);
  EXPECT_EQ(std::count(three.begin(), three.end(), '1'), 3);
}

TEST_F(FailpointTest, BadTextsNameTheTermAndChangeNothing) {
  ASSERT_TRUE(Failpoints::Configure("test.fallible=return(ABORTED)").ok());
  EXPECT_THAT(Refusal("test.fallible=off;test.plain=off->klil"),
              AllOf(HasSubstr("test.plain: term \"klil\""), HasSubstr("known are off, kill")));
  EXPECT_FALSE(Fallible().ok());
  EXPECT_THAT(Refusal("test.plan=off"), HasSubstr("\"test.plan\"; did you mean test.plain?"));
  EXPECT_THAT(Refusal("zzz=off"), HasSubstr("it has: test.fallible, test.plain, test.value"));
  EXPECT_THAT(Refusal("test.plain"), HasSubstr("\"test.plain\" is not of the form name=action"));
  EXPECT_THAT(Refusal("test.plain=return(ABORTED)"), HasSubstr("nothing can be returned"));
  EXPECT_THAT(Refusal("test.value=return(NOPE)"), HasSubstr("\"return(NOPE)\" needs a status"));
  EXPECT_THAT(Refusal("test.value=return(OK)"), HasSubstr("needs a status code"));
  for (const char* term : {"", "kill(1)", "return", "return(ABORTED", "pause()", "off off"}) {
    EXPECT_THAT(Refusal(std::string("test.value=") + term), HasSubstr("is no action"));
  }
  for (const char* term : {"sleep(x)", "sleep(-1)", "sleep()", "sleep(86400001)"}) {
    EXPECT_THAT(Refusal(std::string("test.value=") + term), HasSubstr("milliseconds"));
  }
  for (const char* term : {"101%off", "-1%off", "%off", "nan%off", "x%off"}) {
    EXPECT_THAT(Refusal(std::string("test.value=") + term), HasSubstr("0 to 100 before the %"));
  }
  for (const char* term : {"x*off", "*off", "-1*off", "1.5*off"}) {
    EXPECT_THAT(Refusal(std::string("test.value=") + term), HasSubstr("whole number before the *"));
  }
  EXPECT_TRUE(Failpoints::Configure("").ok());
  EXPECT_FALSE(Fallible().ok());
}

TEST_F(FailpointTest, SleepGoesOn) {
  ASSERT_TRUE(Failpoints::Configure("test.plain=sleep(0);test.fallible=sleep(1)").ok());
  Plain();
  EXPECT_TRUE(Fallible().ok());
}

TEST_F(FailpointTest, PauseHoldsAThreadUntilSetAnew) {
  ASSERT_TRUE(Failpoints::Configure("test.plain=1*pause").ok());
  std::atomic<bool> passed{false};
  std::thread thread([&] {
    PlainAgain();
    passed = true;
  });
  Failpoints::WaitForPause("test.plain");
  EXPECT_FALSE(passed);
  Plain();  // The second hit.
  ASSERT_TRUE(Failpoints::Configure("test.fallible=off").ok());
  Failpoints::WaitForPause("test.plain");
  EXPECT_FALSE(passed);
  Failpoints::Reset();
  thread.join();
  EXPECT_TRUE(passed);
}

TEST_F(FailpointTest, ACountIsSharedByAllThreads) {
  ASSERT_TRUE(Failpoints::Configure("test.fallible=100*off->50*return(ABORTED)").ok());
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) failed += Fallible().ok() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 50);
}

TEST(FailpointDeathTest, KillAndAbortEndTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Failpoints::Configure("test.plain=1*off->kill").IgnoreError();
        Plain();
        std::fprintf(stderr, "alive");
        Plain();
        std::exit(0);
      },
      ::testing::KilledBySignal(SIGKILL), "alive");
  EXPECT_EXIT(
      {
        Failpoints::Configure("test.fallible=abort").IgnoreError();
        Fallible().IgnoreError();
        std::exit(0);
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace ballast
