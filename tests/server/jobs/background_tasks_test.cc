// The parts of the directory that need no cluster: the memory book, and work on other threads.
#include "server/jobs/background_tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/reason.h"
#include "common/base/sync.h"
#include "common/threads/executor_source.h"
#include "common/threads/thread_executor.h"
#include "server/jobs/memory_book.h"

namespace ballast::server {
namespace {

using Thread = BackgroundTasks::Thread;

// Past events, in order; a test waits for a number of entries.
class Diary {
 public:
  void Write(const std::string& entry) {
    MutexLock lock(&mu_);
    entries_.push_back(entry);
    changed_.NotifyAll();
  }
  std::vector<std::string> WaitFor(size_t count) {
    MutexLock lock(&mu_);
    while (entries_.size() < count) changed_.Wait(&mu_);
    return entries_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> entries_;
};

// A directory with no other part.
class Owner {
 public:
  Owner(const DirectoryConfig& config, Executor* executor)
      : self(config),
        strand(executor),
        work({.self = &self,
              .strand = &strand,
              .clock = RealClock::Get(),
              .executors = ThreadSource::Get()}) {}
  ~Owner() { work.Join(); }

  ThisServer self;
  OwnerStrand strand;
  BackgroundTasks work;
};

class BackgroundTasksTest : public testing::Test {
 protected:
  BackgroundTasksTest() { owner_->strand.SetOwner(owner_); }
  ~BackgroundTasksTest() override {
    owner_.reset();
    executor_.Shutdown();
  }

  static DirectoryConfig Config() {
    DirectoryConfig config;
    config.self = 1;
    config.servers = {{0, "127.0.0.1:1"}, {1, "127.0.0.1:2"}};
    return config;
  }
  // Runs `task` on the strand, and returns when it has run.
  void OnStrand(const std::function<void()>& task) {
    Diary done;
    owner_->strand.Post([&] {
      task();
      done.Write("done");
    });
    done.WaitFor(1);
  }
  // Work that waits until it is halted.
  void CarryOutUntilHalted(BackgroundTasks::Making making) {
    OnStrand([&] {
      owner_->work.CarryOut(
          Thread::kExchange, std::move(making),
          [this](const CancelToken& cancel) {
            diary_.Write("begins");
            while (cancel.status().ok()) std::this_thread::yield();
            return cancel.status();
          },
          [this](const absl::Status& status) { diary_.Write(std::string(status.message())); });
    });
    diary_.WaitFor(1);
  }

  Diary diary_;
  ThreadExecutor executor_{"test", 2};
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>(Config(), &executor_);
};

TEST_F(BackgroundTasksTest, ATaskRunsOnItsThreadAndItsResultComesToTheStrand) {
  const auto test_thread = std::this_thread::get_id();
  OnStrand([&] {
    owner_->work.Run(
        Thread::kSnapshots, [=] { return std::this_thread::get_id() != test_thread ? 7 : 0; },
        [&](int result) { diary_.Write(std::to_string(result)); });
  });
  EXPECT_EQ(diary_.WaitFor(1)[0], "7");
}

TEST_F(BackgroundTasksTest, ALaterOrderForTheSameNameBeginsWhenTheFirstHasEnded) {
  CarryOutUntilHalted({5, {.name = "job"}});
  OnStrand([&] {
    owner_->work.CarryOut(
        Thread::kSnapshots, {6, {.name = "job"}},
        [](const CancelToken& cancel) { return cancel.status(); },
        [&](const absl::Status& status) { diary_.Write(status.ok() ? "second" : "halted"); });
  });
  const std::vector<std::string> entries = diary_.WaitFor(3);
  EXPECT_EQ(entries[1], "job \"job\" is being made anew, by a later order");
  EXPECT_EQ(entries[2], "second");
}

TEST_F(BackgroundTasksTest, AMakingThatIsHaltedRunsWhatWaitsForIt) {
  CarryOutUntilHalted({5, {.name = "job"}});
  OnStrand([&] {
    EXPECT_FALSE(owner_->work.CancelMaking(6, [] {}));
    EXPECT_TRUE(owner_->work.CancelMaking(5, [&] { diary_.Write("dropped"); }));
  });
  const std::vector<std::string> entries = diary_.WaitFor(3);
  EXPECT_EQ(entries[1], "dropped");
  EXPECT_NE(entries[2].find("was dropped by its home"), std::string::npos);
}

TEST_F(BackgroundTasksTest, StopHaltsOrdersGivesUpWaitsAndAnswersWhenNothingIsUnderWay) {
  CarryOutUntilHalted({});
  std::shared_ptr<WhenAll> answers;
  OnStrand([&] {
    answers = owner_->work.WhenAllPeers(2, [&](const absl::Status& status) {
      diary_.Write(ReasonOf(status) == Reason::kShuttingDown ? "given up" : "answered");
    });
    owner_->self.Stop();
    owner_->work.Stop(owner_->self.ShuttingDown(), [&] { diary_.Write("idle"); });
  });
  const std::vector<std::string> entries = diary_.WaitFor(4);
  EXPECT_EQ(entries[1], "given up");
  EXPECT_EQ(entries[2], "server 1 is shutting down");
  EXPECT_EQ(entries[3], "idle");
  answers->Add(absl::OkStatus());  // Too late.
  answers->Add(absl::OkStatus());
  EXPECT_EQ(diary_.WaitFor(4).size(), 4u);
}

TEST_F(BackgroundTasksTest, AResultIsDroppedWhenTheOwnerIsGone) {
  std::atomic<bool> go{false};
  OnStrand([&] {
    owner_->work.Run(
        Thread::kSnapshots,
        [&] {
          diary_.Write("begins");
          while (!go) std::this_thread::yield();
          return 1;
        },
        [&](int) { diary_.Write("result"); });
  });
  diary_.WaitFor(1);
  const std::weak_ptr<Owner> gone = owner_;
  std::thread last([owner = std::move(owner_)]() mutable { owner.reset(); });
  while (!gone.expired()) std::this_thread::yield();
  go = true;
  last.join();
  executor_.Shutdown();
  EXPECT_EQ(diary_.WaitFor(1), std::vector<std::string>{"begins"});
}

TEST(WhenAllTest, TheFirstErrorIsTheAnswer) {
  std::vector<absl::Status> answers;
  WhenAll all(3, [&](const absl::Status& status) { answers.push_back(status); });
  all.Add(absl::OkStatus());
  all.Add(absl::AbortedError("first"));
  EXPECT_TRUE(answers.empty());
  all.Add(absl::InternalError("second"));
  EXPECT_EQ(answers, std::vector<absl::Status>{absl::AbortedError("first")});
}

// --- MemoryBook ---------------------------------------------------------------------------------

JobPlan PlanOf(int64_t elements) {
  JobPlan plan;
  plan.spec.name = "job";
  plan.spec.world = 2;
  plan.spec.tile_elements = 64;
  plan.spec.extent_elements = 128;
  plan.spec.tensors = {{"a", {elements}, DType::kF32, 0, {}}};
  plan.epoch.members = {{0, 1}, {1, 2}};
  plan.epoch.contributors = AllContribute(plan.epoch.members, plan.spec.group_count);
  plan.servers = {1};
  plan.owner.assign(static_cast<size_t>(elements + 127) / 128, 1);
  return plan;
}

TEST(MemoryBookTest, FreeAndHeldMakeTheBudget) {
  MemoryBook book({.self = 1, .bytes = 1 << 20, .state_bytes = 1 << 20, .window_extents_min = 1},
                  std::make_shared<Quotas>(), nullptr);
  const absl::StatusOr<MemoryPlan> plan = book.Plan(PlanOf(1000));
  ASSERT_TRUE(plan.ok()) << plan.status();
  MemoryPlan held;
  book.Change(PlanOf(1000), &held, *plan);
  EXPECT_EQ(held.total(), plan->total());
  EXPECT_EQ(book.used_bytes(), plan->total());
  EXPECT_EQ(book.Free().bytes, (1u << 20) - plan->total());
  EXPECT_EQ(book.RoomOf(PlanOf(1000), held).bytes, 1u << 20);
  book.End(PlanOf(1000), &held);
  EXPECT_EQ(book.used_bytes(), 0u);
}

TEST(MemoryBookTest, ReservedMemoryIsNotFree) {
  MemoryBook book({.self = 1, .bytes = 1 << 20, .state_bytes = 1 << 20, .window_extents_min = 1},
                  std::make_shared<Quotas>(), nullptr);
  const MemoryRoom before = book.Free();
  book.Reserve(PlanOf(1000));
  EXPECT_LT(book.Free().bytes, before.bytes);
  EXPECT_LT(book.Free().state_bytes, before.state_bytes);
  book.Unreserve(PlanOf(1000));
  EXPECT_EQ(book.Free().bytes, before.bytes);
  EXPECT_EQ(book.Free().state_bytes, before.state_bytes);
}

TEST(MemoryBookTest, AJobThatRanBeforeIsPlannedOverTheBudgetAsFarAsTheMachineGoes) {
  const uint64_t least = LeastMemory(PlanOf(1000), 1, 1).total();
  MemoryBook::Budget budget{.self = 1,
                            .bytes = least - 1,
                            .state_bytes = least - 1,
                            .machine_bytes = 2 * least,
                            .window_extents_min = 1};
  MemoryBook book(budget, std::make_shared<Quotas>(1), nullptr);
  MemoryPlan held[2];
  for (MemoryPlan& job : held) {
    EXPECT_EQ(ReasonOf(book.Plan(PlanOf(1000)).status()), Reason::kOverBudget);
    const absl::StatusOr<MemoryPlan> plan = book.PlanRecovered(PlanOf(1000));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->total(), least);
    book.Change(PlanOf(1000), &job, *plan);
  }
  EXPECT_TRUE(book.over_budget());
  EXPECT_EQ(book.Free().bytes, 0u);
  EXPECT_EQ(ReasonOf(book.PlanRecovered(PlanOf(1000)).status()), Reason::kOverBudget);
  for (MemoryPlan& job : held) book.End(PlanOf(1000), &job);
  EXPECT_FALSE(book.over_budget());
}

// A thread for the disk makes a durable job of the same tenant between a plan and its opening.
TEST(MemoryBookTest, ConcurrentGrantsDoNotExceedTheQuota) {
  const auto quotas = std::make_shared<Quotas>(1);
  MemoryBook book({.self = 1, .bytes = 1 << 20, .state_bytes = 1 << 20, .window_extents_min = 1},
                  quotas, nullptr);
  QuotaTable one_job;
  one_job.others.jobs = 1;
  quotas->SetLimits(one_job);
  const JobPlan plan = PlanOf(1000);
  const absl::StatusOr<MemoryPlan> planned = book.Plan(plan);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const Holding stored{Holding::Kind::kStored, 9};
  ASSERT_TRUE(quotas->Take(stored, plan.tenant, {.jobs = 1}).ok());
  EXPECT_EQ(ReasonOf(book.Begin(plan, planned).status()), Reason::kOverQuota);
  EXPECT_EQ(quotas->UseOf(plan.tenant).used, (Amounts{.jobs = 1}));
  EXPECT_EQ(book.used_bytes(), 0u);
  quotas->Give(stored);
  absl::StatusOr<MemoryPlan> held = book.Begin(plan, planned);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(quotas->UseOf(plan.tenant).used.dram_bytes, book.used_bytes());
  book.End(plan, &*held);
  EXPECT_EQ(quotas->UseOf(plan.tenant).used, Amounts());
}

TEST(MemoryBookTest, AJobThatRanBeforeAndFitsGetsWhatANewOneWould) {
  MemoryBook book({.self = 1,
                   .bytes = 1 << 20,
                   .state_bytes = 1 << 20,
                   .machine_bytes = 2 << 20,
                   .window_extents_min = 1},
                  std::make_shared<Quotas>(1), nullptr);
  EXPECT_EQ(book.PlanRecovered(PlanOf(1000))->total(), book.Plan(PlanOf(1000))->total());
}

}  // namespace
}  // namespace ballast::server
