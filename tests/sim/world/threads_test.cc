// Tests of the simulator's threads: threads.h, program.h and fiber.h of tests/sim/world.
#include "tests/sim/world/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/world/program.h"

namespace ballast::sim {
namespace {

class SimThreadsTest : public ::testing::Test {
 protected:
  SimThreadsTest() { swarm_.pace.log_write = swarm_.pace.kernel = kMillisecond; }
  void RunAll() {
    while (world_.Step()) continue;
  }

  World world_{/*seed=*/7, /*nodes=*/1, /*trace=*/false};
  Swarm swarm_;
  SimThreads threads_{&world_, &swarm_, /*node=*/0, /*after_task=*/nullptr};
};

TEST_F(SimThreadsTest, OneThreadKeepsTheOrderOfPosting) {
  const auto log = threads_.MakeExecutor("log", 1);
  std::vector<int> seen;
  for (int i = 0; i < 20; ++i) log->Post([&seen, i] { seen.push_back(i); });
  EXPECT_FALSE(threads_.idle());
  RunAll();
  EXPECT_TRUE(threads_.idle());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.size(), 20u);
  EXPECT_GT(world_.now(), 0u);
}

TEST_F(SimThreadsTest, TasksDuringAPauseRunInTheMiddle) {
  const auto log = threads_.MakeExecutor("log", 1);
  const auto strand = threads_.MakeExecutor("strand", 1);
  std::vector<std::string> seen;
  log->Post([&] {
    seen.push_back("flush begins");
    strand->Post([&] {
      EXPECT_FALSE(World::may_give_way());
      seen.push_back("round");
    });
    ASSERT_TRUE(World::may_give_way());
    world_.GiveWay(kMillisecond, 0);
    seen.push_back("flush ends");
  });
  RunAll();
  EXPECT_EQ(seen, (std::vector<std::string>{"flush begins", "round", "flush ends"}));
}

TEST_F(SimThreadsTest, ShutdownRunsPausedAndWaitingTasks) {
  const auto log = threads_.MakeExecutor("log", 1);
  std::vector<int> seen;
  log->Post([&] {
    world_.GiveWay(kHour, 0);
    seen.push_back(1);
  });
  log->Post([&] { seen.push_back(2); });
  ASSERT_TRUE(world_.Step());
  EXPECT_TRUE(seen.empty());
  log->Shutdown();
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  EXPECT_FALSE(log->Post([] {}));
  RunAll();
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(SimThreadsTest, TheEndOfTheProcessDropsWaitingTasks) {
  const auto log = threads_.MakeExecutor("log", 1);
  const auto owned = std::make_shared<int>(1);
  int ended = 0;
  log->Post([&] {
    world_.GiveWay(kHour, 0);
    ++ended;
  });
  log->Post([&ended, owned] { ++ended; });
  ASSERT_TRUE(world_.Step());
  world_.EndLife(0);
  threads_.Drop();
  EXPECT_EQ(ended, 1);  // It had begun.
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_FALSE(log->Post([] {}));
  RunAll();
  EXPECT_EQ(ended, 1);
}

TEST_F(SimThreadsTest, JobsOfTheWorkersOvertakeOneAnother) {
  SimWorkers workers(&world_, threads_.MakeExecutor("kernels", 4), 4);
  std::vector<int> jobs;
  std::set<size_t> tiles;
  for (int job = 0; job < 20; ++job) {
    workers.Submit(
        3, [&](size_t tile) { tiles.insert(tile); }, [&jobs, job] { jobs.push_back(job); });
  }
  RunAll();
  EXPECT_EQ(jobs.size(), 20u);
  EXPECT_FALSE(std::is_sorted(jobs.begin(), jobs.end()));
  EXPECT_EQ(tiles, (std::set<size_t>{0, 1, 2}));
}

TEST_F(SimThreadsTest, AWaitOfAProgramEndsWithAWakeOrWithTime) {
  std::vector<Tick> seen;
  SimProgram program(&world_, /*node=*/0, [&] {
    for (const Tick at_most : {kSecond, kHour}) {
      EXPECT_TRUE(program.WaitFor(at_most));
      seen.push_back(world_.now() / kMillisecond);
    }
    EXPECT_TRUE(program.Wait());
    seen.push_back(world_.now() / kMillisecond);
  });
  for (const Tick at : {2 * kSecond, 3 * kSecond}) {
    world_.After(at, 0, EventKind::kTimer, [&program] {
      program.Wake();
      program.Wake();  // Of the same wait.
    });
  }
  RunAll();
  EXPECT_EQ(seen, (std::vector<Tick>{1000, 2000, 3000}));
}

TEST_F(SimThreadsTest, TheEndOfTheProcessEndsItsProgramsWaits) {
  std::vector<bool> waits;
  int begun = 0;
  SimProgram program(&world_, /*node=*/0, [&] {
    ++begun;
    for (int i = 0; i < 2; ++i) waits.push_back(program.WaitFor(kHour));
  });
  SimProgram late(&world_, /*node=*/0, [&] { ++begun; });
  ASSERT_TRUE(world_.Step());
  late.End();
  program.End();
  EXPECT_EQ(waits, (std::vector<bool>{false, false}));
  RunAll();
  EXPECT_EQ(begun, 1);
}

}  // namespace
}  // namespace ballast::sim
