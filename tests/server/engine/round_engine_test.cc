// One round through all rooms in one process: frames in, stepped weights out, compared bit for bit
// with a plain loop, for one and several servers (engines whose votes are passed by hand).
#include "server/engine/round_engine.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "server/tier/tier.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::Cluster;
using testing::IncarnationOf;
using testing::MakeBegin;
using testing::MakePlan;
using testing::Random;
using testing::RecordingSink;
using testing::Reference;

class EngineRounds : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(EngineRounds, WeightsEqualThePlainLoopBitForBit) {
  const auto [servers, world] = GetParam();
  std::vector<uint32_t> ids;
  for (int s = 0; s < servers; ++s) ids.push_back(static_cast<uint32_t>(3 * s + 1));
  const std::vector<int64_t> sizes = {300, 1, 77, 640, 129};
  Cluster cluster(MakePlan(sizes, static_cast<uint32_t>(world), ids));
  const auto init = Random(sizes, 1);
  Reference reference(init);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  for (uint64_t round = 1; round <= 5; ++round) {
    std::vector<std::vector<std::vector<float>>> grads;
    std::vector<bool> touched(sizes.size(), true);
    for (int w = 0; w < world; ++w) {
      const auto slot = static_cast<uint32_t>(w);
      grads.push_back(Random(sizes, static_cast<uint32_t>(round * 100 + slot)));
      // In round 3 tensor 2 has no gradient anywhere, tensor 3 only at the last slot.
      std::vector<bool> presence;
      if (round == 3) presence = {true, true, false, w == world - 1, true};
      for (size_t t = 0; t < presence.size(); ++t) {
        if (!presence[t]) std::fill(grads.back()[t].begin(), grads.back()[t].end(), 0.0f);
      }
      if (round == 3) touched[2] = false;
      cluster.Begin(slot, MakeBegin(round, presence));
      cluster.Send(FrameKind::kGradient, slot, round, grads.back(), presence);
    }
    ASSERT_TRUE(cluster.Wait(round).ok());
    reference.Step(grads, 1.0f / static_cast<float>(world), MakeBegin(round).hyper[0], touched);
    for (int w = 0; w < world; ++w) {
      const auto weights = cluster.Weights(static_cast<uint32_t>(w));
      for (size_t t = 0; t < sizes.size(); ++t) {
        EXPECT_EQ(std::memcmp(weights[t].data(), reference.p[t].data(), weights[t].size() * 4), 0)
            << "round " << round << " slot " << w << " tensor " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ServersAndTrainers, EngineRounds,
                         ::testing::Combine(::testing::Values(1, 2, 7),
                                            ::testing::Values(1, 2, 4)));

class SkippedRounds : public ::testing::TestWithParam<int> {};

TEST_P(SkippedRounds, SendNoWeightsAndTheNextOneApplies) {
  std::vector<uint32_t> ids;
  for (int s = 0; s < GetParam(); ++s) ids.push_back(static_cast<uint32_t>(s));
  const std::vector<int64_t> sizes = {1000};
  Cluster cluster(MakePlan(sizes, 1, ids));
  cluster.Send(FrameKind::kInit, 0, 1, Random(sizes, 1));
  for (uint64_t round = 1; round <= 20; ++round) {
    auto grads = Random(sizes, static_cast<uint32_t>(round));
    const bool skipped = round % 2 == 1;
    if (skipped) grads[0][42] = round % 4 == 1 ? INFINITY : NAN;
    cluster.Begin(0, MakeBegin(round));
    cluster.Send(FrameKind::kGradient, 0, round, grads);
    ASSERT_TRUE(cluster.Wait(round).ok());
    for (const uint32_t id : ids) {
      auto& sink = cluster.sinks_[{id, 0}];
      MutexLock lock(&sink->mu_);
      EXPECT_EQ(sink->result_.applied, !skipped);
      EXPECT_EQ(sink->result_.round, round);
      EXPECT_EQ(sink->result_.nonfinite, skipped ? 1u : 0u);
      EXPECT_EQ(sink->result_.opt_step, round / 2);
      EXPECT_EQ(sink->weights_[0].empty(), round == 1 || cluster.plan_.owner[0] != id);
    }
  }
}

TEST_P(SkippedRounds, NameTheFirstPlaceAndAreHaltedWhenTheyAreTooMany) {
  std::vector<uint32_t> ids;
  for (int s = 0; s < GetParam(); ++s) ids.push_back(static_cast<uint32_t>(s));
  const std::vector<int64_t> sizes = {100, 1000, 77};
  JobPlan plan = MakePlan(sizes, 2, ids);
  plan.spec.max_consecutive_skips = 1;
  Cluster cluster(plan);
  cluster.Send(FrameKind::kInit, 0, 1, Random(sizes, 1));
  for (uint64_t round = 1; round <= 3; ++round) {
    std::vector<std::vector<std::vector<float>>> grads = {Random(sizes, 2), Random(sizes, 3)};
    if (round < 3) {
      grads[0][2][5] = NAN;
      grads[1][1][300] = INFINITY;  // Element 400 of the flat space: extent 3, element 16.
    }
    for (const uint32_t slot : {0u, 1u}) {
      cluster.Begin(slot, MakeBegin(round));
      cluster.Send(FrameKind::kGradient, slot, round, grads[slot]);
    }
    ASSERT_TRUE(cluster.Wait(round).ok());
    for (const auto& [key, sink] : cluster.sinks_) {
      MutexLock lock(&sink->mu_);
      EXPECT_EQ(sink->result_.applied, round == 3);
      EXPECT_EQ(sink->result_.halted, round == 2);
      EXPECT_EQ(sink->result_.consecutive_skips, round % 3);
      const Nonfinite place{NonfiniteKind::kGradient, 3, 16, 1, 0x7F800000};
      EXPECT_EQ(sink->result_.first_nonfinite, round == 3 ? Nonfinite() : place);
      EXPECT_EQ(sink->result_.opt_step, round / 3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Servers, SkippedRounds, ::testing::Values(1, 2, 7));

TEST(RoundEngineTest, FetchWaitsForTheInitialWeights) {
  const std::vector<int64_t> sizes = {100};
  Cluster cluster(MakePlan(sizes, 2, {0}));
  cluster.engines_[0]->trainers().FetchState({1, 1, true, {0}});
  const auto init = Random(sizes, 1);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  cluster.Begin(0, MakeBegin(1));
  cluster.Begin(1, MakeBegin(1));
  for (const uint32_t slot : {0u, 1u})
    cluster.Send(FrameKind::kGradient, slot, 1, Random(sizes, 2));
  ASSERT_TRUE(cluster.Wait(1).ok());
  auto& sink = cluster.sinks_[{0, 1}];
  MutexLock lock(&sink->mu_);
  EXPECT_EQ(std::memcmp(sink->state_[{0, 0}].data(), init[0].data(), 100 * 4), 0);
}

TEST(RoundEngineTest, DuplicatedFramesChangeNothing) {
  const std::vector<int64_t> sizes = {300};
  std::vector<std::vector<float>> weights[2];
  for (const bool twice : {false, true}) {
    Cluster cluster(MakePlan(sizes, 2, {0}));
    cluster.Send(FrameKind::kInit, 0, 1, Random(sizes, 1));
    cluster.Begin(0, MakeBegin(1));
    cluster.Begin(1, MakeBegin(1));
    cluster.Send(FrameKind::kGradient, 0, 1, Random(sizes, 2));
    if (twice) cluster.Send(FrameKind::kGradient, 0, 1, Random(sizes, 2));
    cluster.Send(FrameKind::kGradient, 1, 1, Random(sizes, 3));
    ASSERT_TRUE(cluster.Wait(1).ok());
    weights[twice ? 1 : 0] = cluster.Weights(0);
    const auto& refusals = cluster.sinks_[{0, 0}]->refusals_;
    EXPECT_EQ(refusals.size(), twice ? 5u : 0u);
    for (const FrameRefused& refused : refusals) EXPECT_EQ(refused.reason, Reason::kDuplicate);
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(RoundEngineTest, AFrameWithABadChecksumChangesNothing) {
  const std::vector<int64_t> sizes = {300, 70};
  Cluster cluster(MakePlan(sizes, 1, {0}));
  const auto init = Random(sizes, 1);
  const auto grad = Random(sizes, 2);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  cluster.Begin(0, MakeBegin(1));
  const auto frames = cluster.Frames(FrameKind::kGradient, 0, 1, grad);
  for (size_t i = 0; i < frames.size(); ++i) {
    auto bad = frames[i];
    bad.bytes.back() = static_cast<char>(bad.bytes.back() ^ 1);
    cluster.Send(bad);
    // Nor does one that comes after the good one, which its header makes look like a duplicate.
    if (i > 0) {
      auto late = frames[i - 1];
      late.bytes.front() = static_cast<char>(late.bytes.front() ^ 1);
      cluster.Send(late);
    }
    cluster.Send(frames[i]);
  }
  ASSERT_TRUE(cluster.Wait(1).ok());
  const auto refusals = cluster.sinks_[{0, 0}]->TakeRefusals();
  EXPECT_EQ(refusals.size(), 2 * frames.size() - 1);
  for (const FrameRefused& r : refusals) EXPECT_EQ(r.reason, Reason::kBadChecksum) << r.message;
  Reference reference(init);
  reference.Step({grad}, 1.0f, MakeBegin(1).hyper[0], {true, true});
  EXPECT_EQ(cluster.Weights(0), reference.p);
}

TEST(RoundEngineTest, StateCanBeFetchedBetweenRounds) {
  const std::vector<int64_t> sizes = {200};
  Cluster cluster(MakePlan(sizes, 1, {0}));
  const auto init = Random(sizes, 1);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  cluster.engines_[0]->trainers().FetchState({0, 1, true, {0, 1, 2}});
  cluster.Begin(0, MakeBegin(1));
  cluster.Send(FrameKind::kGradient, 0, 1, Random(sizes, 2));
  ASSERT_TRUE(cluster.Wait(1).ok());
  auto& sink = cluster.sinks_[{0, 0}];
  MutexLock lock(&sink->mu_);
  EXPECT_EQ(std::memcmp(sink->state_[{0, 0}].data(), init[0].data(), 128 * 4), 0);
  EXPECT_EQ((sink->state_[{1, 0}]), std::vector<char>(128 * 4, 0));
}

TEST(RoundEngineTest, AFetchOfNeitherWeightsNorArraysSendsNone) {
  const std::vector<int64_t> sizes = {200};
  Cluster cluster(MakePlan(sizes, 1, {0}));
  cluster.Send(FrameKind::kInit, 0, 1, Random(sizes, 1));
  cluster.Begin(0, MakeBegin(1));
  cluster.Send(FrameKind::kGradient, 0, 1, Random(sizes, 2));
  ASSERT_TRUE(cluster.Wait(1).ok());
  testing::RecordingSink* const sink = cluster.sinks_[{0, 0}].get();
  {
    MutexLock lock(&sink->mu_);
    for (std::vector<char>& weights : sink->weights_) weights.clear();
  }
  cluster.engines_[0]->trainers().FetchState({0, 2, false, {}});
  testing::SyncPoint fetched;
  cluster.engines_[0]->Status([&](const JobStatus&) { fetched.Reach(); });
  fetched.Await();
  MutexLock lock(&sink->mu_);
  for (const std::vector<char>& weights : sink->weights_) EXPECT_TRUE(weights.empty());
}

// A timer of `timing.job_ttl` and others know an engine that has ended.
TEST(RoundEngineTest, AnEndedEngineLeavesNoMemoryToThoseWhoKnowIt) {
  std::vector<std::weak_ptr<RoundEngine>> known;
  const auto make = [&known] {
    Cluster cluster(MakePlan({300}, 1, {0}));
    known.push_back(cluster.engines_[0]);
  };
  constexpr size_t kEngines = 64;
  known.reserve(kEngines + 1);
  make();
  const size_t before = mallinfo2().uordblks;
  for (size_t i = 0; i < kEngines; ++i) make();
  EXPECT_LT(mallinfo2().uordblks, before + kEngines * 4096);
  for (const auto& engine : known) EXPECT_TRUE(engine.expired());
}

TEST(RoundEngineTest, LostPeerFailsTheJobByName) {
  Cluster cluster(MakePlan({300}, 1, {0, 1}));
  cluster.engines_[0]->PeerLost(1, "no answer");
  const absl::Status status = cluster.sinks_[{0, 0}]->Wait(1);
  EXPECT_EQ(ReasonOf(status), Reason::kServerLost);
  EXPECT_EQ(FieldsOf(status).server, 1);
}

TEST(RoundEngineTest, AnotherIncarnationCannotTakeTheSlot) {
  Cluster cluster(MakePlan({300}, 1, {0}));
  Mutex mu;
  CondVar cv;
  absl::StatusOr<SlotWelcome> answer = absl::UnknownError("");
  bool done = false;
  cluster.engines_[0]->trainers().AttachSlot({.slot = 0, .incarnation = 5, .epoch = 1},
                                             std::make_shared<RecordingSink>(3),
                                             [&](absl::StatusOr<SlotWelcome> welcome) {
                                               MutexLock lock(&mu);
                                               answer = std::move(welcome);
                                               done = true;
                                               cv.NotifyAll();
                                             });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  EXPECT_EQ(ReasonOf(answer.status()), Reason::kWrongIncarnation);
}

// A frame may come in after its stream has ended, when another process has the slot.
TEST(RoundEngineTest, AFrameOfAnotherProcessIsNotRefusedToTheOneInItsSlot) {
  Cluster cluster(MakePlan({300}, 1, {0}));
  Cluster::Frame own =
      cluster.Frames(FrameKind::kGradient, 0, /*round=*/99, {std::vector<float>(300, 1.0f)})[0];
  Cluster::Frame last = own;
  ++last.header.incarnation;
  cluster.Send(last);
  cluster.Send(own);
  testing::SyncPoint looked_at;
  cluster.engines_[0]->Status([&](const JobStatus&) { looked_at.Reach(); });
  looked_at.Await();
  const std::vector<FrameRefused> refusals = cluster.sinks_[{0, 0}]->TakeRefusals();
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].reason, Reason::kFutureRound);
}

TEST(PlanMemoryTest, NamesTheParts) {
  const JobPlan plan = MakePlan({1000}, 2, {0});
  const auto fits = PlanMemory(plan, 0, {1 << 30}, 4);
  ASSERT_TRUE(fits.ok());
  EXPECT_EQ(fits->window_extents, 8u);
  EXPECT_EQ(fits->state_bytes, DramExtentBytes(128, {64, 3}) * 7 + DramExtentBytes(104, {64, 3}));
  // A page for 128 elements, and 64 bytes for each (extent, slot) in addition to its payload.
  EXPECT_EQ(fits->register_bytes, 8 * 2 * (4096 + 64));
  EXPECT_EQ(fits->sum_bytes, 8 * 4096);
  // The window is the job: seven extents of 128 elements, and one of 104, in multiples of 64 bytes.
  EXPECT_EQ(fits->weight_bytes, 2 * (7 * 128 + 112) * 4);
  const auto tight = PlanMemory(plan, 0, {fits->total() - 1}, 4);
  ASSERT_TRUE(tight.ok()) << "the window shrinks first";
  EXPECT_LT(tight->window_extents, 8u);
  const auto refused = PlanMemory(plan, 0, {fits->state_bytes}, 4);
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kOverBudget);
  EXPECT_NE(std::string(refused.status().message()).find("storage.dram_budget"), std::string::npos);
}

}  // namespace
}  // namespace ballast::server
