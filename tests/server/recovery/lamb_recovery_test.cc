// A LAMB round in the log of a server: the ratios and its own squares, or an error where they are
// needed and lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reason.h"
#include "common/io/arena.h"
#include "common/io/memory_disk.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/engine/round_engine.h"
#include "server/optim/dispatch.h"
#include "server/recovery/recovery.h"
#include "server/round/scalar_bits.h"
#include "server/simd/isa.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LayoutOf;
using testing::MakePlan;
using testing::WithLamb;

constexpr char kDirectory[] = "/job";

class NoVotes : public VoteSink {
 public:
  void SendVote(uint64_t, uint32_t, uint64_t, uint32_t, const Vote&) override {}
  void DropVotes(uint64_t) override {}
};

// A job of one server and one extent, whose log and images the tests write.
class LambRecovery : public ::testing::Test {
 protected:
  void SetUp() override {
    auto storage = JobStorage::Create(&disk_, kDirectory, options_);
    ASSERT_TRUE(storage.ok()) << storage.status();
    storage_ = *std::move(storage);
    const std::vector<float> grad(kPageBytes / sizeof(float), 0.5f);
    const LoggedExtent extent{
        .epoch = 1, .round = 1, .dtype = DType::kF32, .sumsq = 1, .bytes = 400};
    ASSERT_TRUE(storage_->log()->AppendExtent({.at = extent, .data = grad.data()}).ok());
    PreparedRecord prepared{.epoch = 1, .round = 1, .present = {true}, .tensor_step = {0}};
    prepared.vote.norms = {{0, 1.0}};
    prepared.vote.scalars = Scalars();
    ASSERT_TRUE(storage_->log()->AppendPrepared(prepared).ok());
  }
  std::vector<ScalarSet> Scalars() const {
    const auto scalars =
        optim::MakeScalars(plan_.spec.optimizer, plan_.spec.options, testing::kLambHyperOfTests, 1);
    return {{.group = 0, .step = 1, .bits = ScalarsToBits(scalars)}};
  }
  void LogRatios() { ASSERT_TRUE(storage_->log()->AppendRatios(kRatios).ok()); }
  void LogDecision() {
    DecisionRecord record{.epoch = 1, .round = 1};
    record.decision.applied = true;
    record.decision.grad_scale = {1.0f};
    record.decision.scalars = Scalars();
    ASSERT_TRUE(storage_->log()->AppendDecision(record).ok());
  }
  // The only image: all values are 1.
  void WriteImage(uint64_t version) {
    const Arena image = *Arena::Create(kPageBytes);
    std::fill_n(reinterpret_cast<float*>(image.data()), 300, 1.0f);
    ASSERT_TRUE(storage_->images()->Write(0, version, image.data()).ok());
    ASSERT_TRUE(storage_->images()->Sync().ok());
  }
  absl::StatusOr<Recovered> Restart() {
    EXPECT_TRUE(storage_->log()->Sync().ok());
    storage_ = nullptr;
    auto storage = JobStorage::Open(&disk_, kDirectory, options_);
    if (!storage.ok()) return storage.status();
    return Recover(plan_, layout_, {0}, storage->get(), &state_);
  }
  void ExpectLost(const std::string& text) {
    const absl::Status status = Restart().status();
    EXPECT_EQ(ReasonOf(status), Reason::kStateLost) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  static JobPlan Plan() {
    JobPlan plan = WithLamb(MakePlan({100}, 1, {0}));
    plan.spec.durability = Durability::kPower;
    return plan;
  }

  const RatiosRecord kRatios{
      .epoch = 1, .round = 1, .ratios = {0.5f}, .squares = {{0, 0, 2.0, 8.0}}};
  const JobPlan plan_ = Plan();
  const Layout layout_ = LayoutOf(plan_);
  const StorageOptions options_ = StorageOptionsOf(plan_, layout_, 0, 2);
  MemoryDisk disk_;
  std::unique_ptr<JobStorage> storage_;
  ModelState state_ = *MakeModelState({.shape = StateShapeOf(plan_.spec)}, layout_, {0},
                                      &optim::Kernels(simd::Isa::kScalar));
};

TEST_F(LambRecovery, TheOpenRoundHasItsRatiosAndItsSecondVote) {
  LogRatios();
  WriteImage(1);
  const auto recovered = Restart();
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_THAT(recovered->fsm.ratios, ElementsAre(0.5f));
  EXPECT_EQ(recovered->fsm.prepared->vote.squares, kRatios.squares);
}

TEST_F(LambRecovery, WithoutThemItMeasuresAgain) {
  WriteImage(1);
  const auto recovered = Restart();
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_TRUE(recovered->fsm.ratios.empty());
  EXPECT_FALSE(recovered->fsm.prepared->vote.squares.has_value());
}

TEST_F(LambRecovery, AnImageThatTheStepHasWrittenNeedsThem) {
  WriteImage(2);
  ASSERT_TRUE(storage_->log()->Sync().ok());
  const RealClock clock;
  ThreadExecutor executor("test", 2);
  ThreadWorkerPool workers(1);
  NoVotes votes;
  const EngineDeps deps{.executor = &executor,
                        .workers = &workers,
                        .clock = &clock,
                        .isa = simd::Isa::kScalar,
                        .votes = &votes};
  storage_ = nullptr;
  auto storage = JobStorage::Open(&disk_, kDirectory, options_);
  ASSERT_TRUE(storage.ok()) << storage.status();
  auto engine = RoundEngine::Create(plan_, {.checkpoint_rounds = 2}, deps, *std::move(storage));
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::promise<absl::Status> ended;
  (*engine)->OnEnd([&](const absl::Status& why, uint64_t) { ended.set_value(why); });
  (*engine)->Start();
  const absl::Status why = ended.get_future().get();
  EXPECT_EQ(ReasonOf(why), Reason::kStateLost) << why;
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("extent 0 holds version 2, but the log lacks the ratios of round 1"));
  engine->reset();
  executor.Shutdown();
}

TEST_F(LambRecovery, SuchAnImageIsAheadWithThem) {
  LogRatios();
  WriteImage(2);
  const auto recovered = Restart();
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_THAT(recovered->ahead, ElementsAre(0u));
}

TEST_F(LambRecovery, ADecidedRoundIsReplayedByItsRatiosAndKeepsTheSecondVote) {
  LogRatios();
  LogDecision();
  WriteImage(1);
  const auto recovered = Restart();
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(recovered->fsm.round, 2u);
  EXPECT_EQ(recovered->fsm.last_prepared->vote.squares, kRatios.squares);
  // m = v = 1 before; the formula by hand.
  const float m = std::fma(0.1f, 0.5f - 1.0f, 1.0f);
  const float v = std::fma(0.001f * 0.5f, 0.5f, 0.999f);
  const float grow_root = static_cast<float>(1 / std::sqrt(1 - 0.999));
  const float u = std::fma(
      0.1f, 1.0f, m * static_cast<float>(1 / (1 - 0.9)) / std::fma(std::sqrt(v), grow_root, 1e-8f));
  const TileView tile = state_.store.Tile(0, 0);
  EXPECT_EQ(tile.array[1][7], m);
  EXPECT_EQ(tile.array[2][7], v);
  EXPECT_EQ(tile.master()[7], std::fma(-1e-2f * 0.5f, u, 1.0f));
}

TEST_F(LambRecovery, ADecidedRoundWithoutRatiosIsLost) {
  LogDecision();
  WriteImage(1);
  ExpectLost("the log lacks the ratios of round 1");
}

}  // namespace
}  // namespace ballast::server
