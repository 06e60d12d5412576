// Tests of common/threads/worker_pool.h.
#include "common/threads/thread_worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ballast {
namespace {

class WorkerPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(WorkerPoolTest, RunCallsEveryTaskOnce) {
  ThreadWorkerPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (size_t tasks : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}}) {
    std::vector<int> calls(tasks, 0);  // Each task owns its element, so plain ints do.
    pool.Run(tasks, [&](size_t task) { ++calls[task]; });
    EXPECT_EQ(calls, std::vector<int>(tasks, 1));
  }
}

TEST_P(WorkerPoolTest, RunsOfManyCallersDoNotMix) {
  ThreadWorkerPool pool(GetParam());
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) {
        std::atomic<int> calls{0};
        pool.Run(17, [&](size_t) { ++calls; });
        if (calls != 17) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(WorkerPoolTest, DoneRunsOnceAfterTheLastTask) {
  ThreadWorkerPool pool(GetParam());
  for (size_t tasks : {size_t{0}, size_t{1}, size_t{100}}) {
    std::atomic<size_t> calls{0};
    std::promise<size_t> at_done;
    pool.Submit(
        tasks, [&](size_t) { ++calls; }, [&] { at_done.set_value(calls.load()); });
    EXPECT_EQ(at_done.get_future().get(), tasks);
  }
}

TEST_P(WorkerPoolTest, DestructionFinishesSubmittedTasks) {
  std::atomic<int> calls{0};
  std::atomic<int> dones{0};
  {
    ThreadWorkerPool pool(GetParam());
    for (int job = 0; job < 50; ++job) {
      pool.Submit(
          10, [&](size_t) { ++calls; }, [&] { ++dones; });
    }
  }
  EXPECT_EQ(calls, 500);
  EXPECT_EQ(dones, 50);
}

TEST_P(WorkerPoolTest, DoneMaySubmitTheNextJob) {
  std::atomic<int> rounds{0};
  std::promise<void> finished;
  ThreadWorkerPool pool(GetParam());
  std::function<void()> next = [&] {
    if (++rounds == 20) {
      finished.set_value();
    } else {
      pool.Submit(
          3, [](size_t) {}, next);
    }
  };
  next();
  finished.get_future().wait();
  EXPECT_EQ(rounds, 20);
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolTest, ::testing::Values(1, 2, 5));

TEST(WorkerPoolOrderTest, OneWorkerTakesJobsAndTasksInOrder) {
  std::vector<std::pair<int, size_t>> seen;
  {
    ThreadWorkerPool pool(1);
    for (int job = 0; job < 3; ++job) {
      pool.Submit(
          4, [&seen, job](size_t task) { seen.emplace_back(job, task); }, nullptr);
    }
  }
  ASSERT_EQ(seen.size(), 12u);
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], (std::pair<int, size_t>(static_cast<int>(i / 4), i % 4)));
  }
}

TEST(WorkerPoolOrderTest, TheNextJobStartsWhileTheFirstStillRuns) {
  ThreadWorkerPool pool(2);
  std::promise<void> second_started, first_done;
  std::shared_future<void> started = second_started.get_future().share();
  // The first job's only task ends when the second job has begun.
  pool.Submit(
      1, [&](size_t) { started.wait(); }, [&] { first_done.set_value(); });
  pool.Submit(
      1, [&](size_t) { second_started.set_value(); }, nullptr);
  first_done.get_future().wait();
}

TEST(WorkerPoolOrderTest, ClosuresAreDestroyedAfterDone) {
  auto held = std::make_shared<int>(0);
  {
    ThreadWorkerPool pool(1);
    pool.Submit(
        1, [held](size_t) {}, [held] { EXPECT_GE(held.use_count(), 3); });
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(WorkerPoolDeathTest, RunFromItsOwnTaskEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadWorkerPool pool(1);
        pool.Run(1, [&](size_t) { pool.Run(1, [](size_t) {}); });
      },
      "t_pool != this");
}

#if defined(__SSE__)
TEST(WorkerPoolFloatTest, WorkersRoundToNearestWhateverTheCreatorDoes) {
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u | 0x6000u);  // Flush to zero, denormals are zero, round to zero.
  ThreadWorkerPool pool(2);
  unsigned int mode = 0;
  pool.Run(1, [&](size_t) { mode = _mm_getcsr(); });
  _mm_setcsr(before);
  EXPECT_EQ(mode & ~0x3Fu, 0x1F80u);  // Without the sticky exception flags.
}
#endif

}  // namespace
}  // namespace ballast
