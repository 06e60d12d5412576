// Leases of seats at the engine: when a slot that can take no further part gives its seat up.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "common/io/memory_disk.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/engine/round_engine.h"
#include "server/recovery/recovery.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::IncarnationOf;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakePlan;
using testing::RecordingSink;

// The home of a durable job of two trainers that may come and go, with both attached.
class SeatLease : public ::testing::Test, public VoteSink {
 protected:
  SeatLease() : plan_(MakePlan({300}, /*world=*/2, {0})), layout_(LayoutOf(plan_)) {
    plan_.spec.durability = Durability::kPower;
    plan_.spec.variable_world = true;
  }
  void SetUp() override {
    EngineConfig config{.self = 0, .chunk_bytes = 256, .checkpoint_rounds = 1};
    config.open_timeout = std::chrono::hours(1);
    config.return_wait = std::chrono::hours(1);
    config.lease = std::chrono::milliseconds(50);
    const EngineDeps deps{.executor = &executor_,
                          .workers = &workers_,
                          .clock = RealClock::Get(),
                          .isa = simd::DetectIsa(),
                          .votes = this};
    auto storage = JobStorage::Create(&disk_, "/jobs/1", StorageOptionsOf(plan_, layout_, 0, 1));
    ASSERT_TRUE(storage.ok()) << storage.status();
    auto engine = RoundEngine::Create(plan_, config, deps, *std::move(storage));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    engine_->trainers().OnSeatFree([this](uint32_t slot, uint64_t, bool left) {
      MutexLock lock(&mu_);
      EXPECT_FALSE(left);
      freed_.insert(slot);
      changed_.NotifyAll();
    });
    engine_->Start();
    for (const uint32_t slot : {0u, 1u}) sinks_[slot] = Attach(slot);
    MutexLock lock(&mu_);
    freed_.clear();  // of those that were away until now
  }
  ~SeatLease() override {
    engine_.reset();
    executor_.Shutdown();
  }

  void SendVote(uint64_t, uint32_t, uint64_t, uint32_t, const Vote&) override {}
  void DropVotes(uint64_t) override {}

  std::shared_ptr<RecordingSink> Attach(uint32_t slot) {
    auto sink = std::make_shared<RecordingSink>(layout_.extents().size());
    MutexLock lock(&mu_);
    bool answered = false;
    engine_->trainers().AttachSlot({.slot = slot, .incarnation = IncarnationOf(slot), .epoch = 1},
                                   sink, [&](const absl::StatusOr<SlotWelcome>& welcome) {
                                     MutexLock answer(&mu_);
                                     EXPECT_TRUE(welcome.ok()) << welcome.status();
                                     answered = true;
                                     changed_.NotifyAll();
                                   });
    while (!answered) changed_.Wait(&mu_);
    return sink;
  }
  void AwaitFree(uint32_t slot) {
    MutexLock lock(&mu_);
    while (freed_.count(slot) == 0) changed_.Wait(&mu_);
  }

  JobPlan plan_;
  Layout layout_;
  MemoryDisk disk_;
  ThreadExecutor executor_{"test", 2};
  ThreadWorkerPool workers_{1};
  Mutex mu_;
  CondVar changed_;
  std::set<uint32_t> freed_;
  std::shared_ptr<RoundEngine> engine_;
  std::shared_ptr<RecordingSink> sinks_[2];
};

TEST_F(SeatLease, OfASlotWhoseStreamBreaksEnds) {
  engine_->trainers().SlotLost({1, sinks_[1].get(), "killed"});
  AwaitFree(1);
}

TEST_F(SeatLease, OfASlotWhoseBeginIsRefusedEndsToo) {
  RoundBegin begin = MakeBegin(1);
  begin.user_state.assign(kUserStateBytesMax + 1, 'x');
  engine_->Begin(1, begin);
  EXPECT_EQ(ReasonOf(sinks_[1]->Wait(1)), Reason::kBadArgument);
  engine_->trainers().SlotLost({1, sinks_[1].get(), "its stream ended after the error"});
  AwaitFree(1);
  MutexLock lock(&sinks_[0]->mu_);
  ASSERT_EQ(sinks_[0]->news_.size(), 1u);
  EXPECT_TRUE(sinks_[0]->news_[0].away);
  EXPECT_EQ(sinks_[0]->news_[0].slot, 1u);
}

}  // namespace
}  // namespace ballast::server
