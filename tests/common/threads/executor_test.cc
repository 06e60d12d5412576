// Tests of common/threads/executor.h.
#include "common/threads/thread_executor.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <future>
#include <memory>
#include <set>
#include <string>

namespace ballast {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

std::string ThreadName() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

TEST(ExecutorTest, OneThreadRunsTasksInOrder) {
  ThreadExecutor executor("order", 1);
  std::vector<int> seen;
  for (int i = 0; i < 100; ++i) executor.Post([&seen, i] { seen.push_back(i); });
  executor.Shutdown();
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(ExecutorTest, SeveralThreadsRunTasksAtTheSameTime) {
  ThreadExecutor executor("wide", 2);
  // Each task waits for the other one, so this ends only when both run at once.
  std::promise<void> first, second;
  executor.Post([&] {
    first.set_value();
    second.get_future().wait();
  });
  executor.Post([&] {
    second.set_value();
    first.get_future().wait();
  });
  executor.Shutdown();
}

TEST(ExecutorTest, NamesItsThreads) {
  ThreadExecutor executor("rpc", 1);
  std::promise<std::string> name;
  executor.Post([&] { name.set_value(ThreadName()); });
  EXPECT_EQ(name.get_future().get(), "rpc-0");
}

TEST(ExecutorTest, KnowsItsOwnThreads) {
  ThreadExecutor executor("own", 1);
  EXPECT_FALSE(executor.IsOwnThread());
  std::promise<bool> own;
  executor.Post([&] { own.set_value(executor.IsOwnThread()); });
  EXPECT_TRUE(own.get_future().get());
}

TEST(ExecutorTest, ShutdownRunsTasksPostedByRunningOnes) {
  ThreadExecutor executor("drain", 2);
  std::atomic<int> depth{0};
  std::function<void()> dig = [&] {
    // Gives the idle thread every chance to leave too early.
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    if (++depth < 50) {
      EXPECT_TRUE(executor.Post(dig));
    }
  };
  executor.Post([&] {
    // Timers are refused from the moment Shutdown has begun.
    while (executor.PostAfter(hours(1), [] {})) std::this_thread::yield();
    dig();
  });
  executor.Shutdown();
  EXPECT_EQ(depth, 50);
}

TEST(ExecutorTest, RefusesTasksAfterShutdown) {
  ThreadExecutor executor("late", 1);
  executor.Shutdown();
  executor.Shutdown();
  EXPECT_FALSE(executor.Post([] { FAIL(); }));
  EXPECT_FALSE(executor.PostAfter(milliseconds(1), [] { FAIL(); }));
  Strand strand(&executor);
  EXPECT_FALSE(strand.Post([] { FAIL(); }));
}

TEST(ExecutorTest, TimersFireInOrderOfTime) {
  ThreadExecutor executor("timers", 1);
  std::vector<int> seen;
  std::promise<void> last;
  executor.PostAfter(milliseconds(30), [&] {
    seen.push_back(30);
    last.set_value();
  });
  executor.PostAfter(milliseconds(10), [&] { seen.push_back(10); });
  executor.PostAfter(milliseconds(20), [&] { seen.push_back(20); });
  executor.PostAfter(milliseconds(-5), [&] { seen.push_back(0); });
  last.get_future().wait();
  EXPECT_EQ(seen, (std::vector<int>{0, 10, 20, 30}));
}

TEST(ExecutorTest, TimersDoNotFireEarly) {
  ThreadExecutor executor("early", 1);
  const auto begin = std::chrono::steady_clock::now();
  std::promise<std::chrono::steady_clock::time_point> fired;
  executor.PostAfter(milliseconds(20), [&] { fired.set_value(std::chrono::steady_clock::now()); });
  EXPECT_GE(fired.get_future().get() - begin, milliseconds(20));
}

TEST(ExecutorTest, ShutdownDropsTimersThatAreNotDue) {
  auto held = std::make_shared<int>(0);
  ThreadExecutor executor("drop", 1);
  executor.PostAfter(hours(1), [held] { FAIL(); });
  executor.PostAfter(std::chrono::nanoseconds::max(), [held] { FAIL(); });
  executor.Shutdown();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(ExecutorTest, DestroysATaskBeforeTheNextOne) {
  ThreadExecutor executor("lifetime", 1);
  auto held = std::make_shared<int>(0);
  std::promise<long> count;
  executor.Post([held] {});
  executor.Post([&] { count.set_value(held.use_count()); });
  EXPECT_EQ(count.get_future().get(), 1);
}

TEST(StrandTest, RunsTasksOneAtATimeInOrder) {
  ThreadExecutor executor("strand", 4);
  Strand strand(&executor);
  std::vector<int> seen;  // Not locked: the strand protects it.
  std::atomic<int> inside{0};
  for (int i = 0; i < 1000; ++i) {
    strand.Post([&, i] {
      EXPECT_EQ(inside.fetch_add(1), 0);
      seen.push_back(i);
      inside.fetch_sub(1);
    });
  }
  executor.Shutdown();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(StrandTest, TakesTasksFromManyThreadsWithoutLoss) {
  ThreadExecutor executor("strand", 2);
  Strand strand(&executor);
  int count = 0;  // Not locked, as above.
  std::vector<std::thread> posters;
  for (int i = 0; i < 4; ++i) {
    posters.emplace_back([&] {
      for (int task = 0; task < 500; ++task) strand.Post([&count] { ++count; });
    });
  }
  for (std::thread& poster : posters) poster.join();
  executor.Shutdown();
  EXPECT_EQ(count, 2000);
}

TEST(StrandTest, DoesNotStarveOtherStrands) {
  ThreadExecutor executor("fair", 1);
  Strand busy(&executor);
  Strand other(&executor);
  std::promise<void> other_ran;
  std::shared_future<void> stop = other_ran.get_future().share();
  std::function<void()> again = [&] {
    if (stop.wait_for(std::chrono::seconds(0)) != std::future_status::ready) busy.Post(again);
  };
  busy.Post(again);
  other.Post([&] { other_ran.set_value(); });
  executor.Shutdown();  // Would not return if `busy` kept the only thread.
}

TEST(StrandTest, KnowsWhetherItIsCurrent) {
  ThreadExecutor executor("current", 1);
  Strand strand(&executor);
  Strand other(&executor);
  std::promise<void> done;
  strand.Post([&] {
    EXPECT_TRUE(strand.IsCurrent());
    EXPECT_FALSE(other.IsCurrent());
    strand.AssertCurrent();
    done.set_value();
  });
  done.get_future().wait();
  EXPECT_FALSE(strand.IsCurrent());
}

TEST(StrandDeathTest, AssertCurrentEndsTheProcessElsewhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadExecutor executor("death", 1);
        Strand strand(&executor);
        strand.AssertCurrent();
      },
      "IsCurrent");
}

TEST(StrandTest, RunsTasksAfterItsOwnDestruction) {
  ThreadExecutor executor("orphan", 1);
  std::promise<void> start, ran;
  executor.Post([&] { start.get_future().wait(); });
  {
    Strand strand(&executor);
    strand.Post([&] { ran.set_value(); });
  }
  start.set_value();
  ran.get_future().wait();
}

TEST(StrandTest, CloseDropsWaitingAndLaterTasks) {
  ThreadExecutor executor("closed", 1);
  Strand strand(&executor);
  const auto owned = std::make_shared<int>(1);
  int ran = 0;
  std::promise<void> over;
  strand.Post([&, owned] {
    ++ran;
    strand.Post([&ran, owned] { ++ran; });
    strand.Close();
    EXPECT_FALSE(strand.Post([&ran] { ++ran; }));
    EXPECT_FALSE(strand.Dispatch([&ran] { ++ran; }));
    over.set_value();
  });
  over.get_future().wait();
  executor.Shutdown();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(StrandTest, DispatchRunsHereWhenTheStrandIsIdle) {
  ThreadExecutor executor("dispatch", 1);
  Strand strand(&executor);
  std::thread::id ran_on;
  EXPECT_TRUE(strand.Dispatch([&] {
    strand.AssertCurrent();
    ran_on = std::this_thread::get_id();
  }));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_FALSE(strand.IsCurrent());
}

TEST(StrandTest, DispatchQueuesAfterARunningTask) {
  ThreadExecutor executor("dispatch", 1);
  Strand strand(&executor);
  std::promise<void> entered;
  std::promise<void> leave;
  std::vector<int> seen;
  strand.Post([&] {
    entered.set_value();
    leave.get_future().wait();
    seen.push_back(1);
  });
  entered.get_future().wait();
  strand.Post([&] { seen.push_back(2); });
  strand.Dispatch([&] { seen.push_back(3); });
  EXPECT_TRUE(seen.empty());
  leave.set_value();
  executor.Shutdown();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

TEST(StrandTest, TasksPostedByADispatchedTaskRunAfterIt) {
  ThreadExecutor executor("dispatch", 1);
  Strand strand(&executor);
  std::vector<int> seen;
  strand.Dispatch([&] {
    strand.Dispatch([&] { seen.push_back(2); });
    strand.Post([&] { seen.push_back(3); });
    seen.push_back(1);
  });
  executor.Shutdown();
  EXPECT_EQ(seen, (std::vector<int>{1, 2, 3}));
}

TEST(StrandTest, DispatchAndPostFromManyThreadsNeverOverlap) {
  ThreadExecutor executor("dispatch", 2);
  Strand strand(&executor);
  int count = 0;  // Not locked: the strand protects it.
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      for (int task = 0; task < 500; ++task) {
        if (i % 2 == 0) {
          strand.Post([&count] { ++count; });
        } else {
          strand.Dispatch([&count] { ++count; });
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  executor.Shutdown();
  EXPECT_EQ(count, 2000);
  EXPECT_FALSE(strand.Dispatch([] { ADD_FAILURE() << "ran after the executor's end"; }));
}

TEST(StrandTest, TimersArriveOnTheStrand) {
  ThreadExecutor executor("timed", 2);
  Strand strand(&executor);
  std::promise<bool> current;
  strand.PostAfter(milliseconds(1), [&] { current.set_value(strand.IsCurrent()); });
  EXPECT_TRUE(current.get_future().get());
}

}  // namespace
}  // namespace ballast
