// One round through all rooms in one process: frames in, stepped weights out, compared bit for bit
// with a plain loop, for one and several servers (engines whose votes are passed by hand).
#include "server/round/round_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "common/base/crc32c.h"
#include "common/base/sync.h"
#include "server/optim/scalars.h"
#include "server/tier/tier.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::IncarnationOf;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;

constexpr uint32_t kChunk = 256;

// Remembers everything a slot was told.
class RecordingSink : public SlotSink {
 public:
  explicit RecordingSink(size_t extents) : weights_(extents) {}
  void OnAck(const Ack&) override {}
  void OnResult(const RoundResult& result) override {
    MutexLock lock(&mu_);
    result_ = result;
  }
  void OnExtent(const OutPiece& piece) override {
    MutexLock lock(&mu_);
    auto& bytes = piece.kind == FrameKind::kWeight ? weights_[piece.extent]
                                                   : state_[{piece.array, piece.extent}];
    bytes.resize(std::max(bytes.size(), piece.offset_bytes + piece.bytes.bytes));
    std::memcpy(bytes.data() + piece.offset_bytes, piece.bytes.data, piece.bytes.bytes);
  }
  void OnDone(const RoundDone& done) override { Finish(done.round, absl::OkStatus()); }
  void OnRefused(const FrameRefused& refused) override {
    MutexLock lock(&mu_);
    refusals_.push_back(refused.reason);
  }
  void OnState(const StateInfo&) override {}
  void OnError(const absl::Status& status) override { Finish(0, status); }

  // Waits for the round's end; its error if it failed.
  absl::Status Wait(uint64_t round) {
    MutexLock lock(&mu_);
    while (done_ < round && status_.ok()) cv_.Wait(&mu_);
    return status_;
  }

  Mutex mu_;
  CondVar cv_;
  uint64_t done_ = 0;
  absl::Status status_;
  RoundResult result_;
  std::vector<Reason> refusals_;
  std::vector<std::vector<char>> weights_;
  std::map<std::pair<int, uint32_t>, std::vector<char>> state_;

 private:
  void Finish(uint64_t round, const absl::Status& status) {
    MutexLock lock(&mu_);
    done_ = std::max(done_, round);
    if (!status.ok()) status_ = status;
    cv_.NotifyAll();
  }
};

class Cluster : public VoteSink {
 public:
  Cluster(JobPlan plan, int threads = 2)
      : plan_(std::move(plan)), layout_(LayoutOf(plan_)), executor_("test", 2), workers_(threads) {
    for (const uint32_t id : plan_.servers) {
      EngineConfig config{.self = id, .chunk_bytes = kChunk, .window_extents = 64};
      EngineDeps deps{.executor = &executor_,
                      .workers = &workers_,
                      .clock = &clock_,
                      .isa = simd::DetectIsa(),
                      .votes = this};
      engines_[id] = *RoundEngine::Create(plan_, config, deps);
      for (uint32_t s = 0; s < plan_.spec.world; ++s) {
        sinks_[{id, s}] = std::make_shared<RecordingSink>(layout_.extents().size());
        engines_[id]->AttachSlot(
            s, IncarnationOf(s), 1, sinks_[{id, s}],
            [](const absl::StatusOr<uint64_t>& round) { ASSERT_TRUE(round.ok()); });
      }
    }
  }
  ~Cluster() override {
    engines_.clear();
    executor_.Shutdown();
  }

  void SendVote(uint64_t, uint32_t epoch, uint64_t round, uint32_t to, const Vote& vote) override {
    engines_[to]->PeerVote(epoch, round, vote);
  }

  // Sends `values` (whole flat job, tensor after tensor) as frames of `kind`.
  void Send(FrameKind kind, uint32_t slot, uint64_t round,
            const std::vector<std::vector<float>>& values, const std::vector<bool>& presence = {}) {
    for (const uint32_t extent : layout_.push_order()) {
      std::vector<float> flat(layout_.extents()[extent].elements);
      const Extent& e = layout_.extents()[extent];
      for (uint32_t i = 0; i < e.run_count; ++i) {
        const Run& run = layout_.runs()[e.first_run + i];
        std::copy_n(values[run.tensor].begin() + static_cast<int64_t>(run.tensor_offset),
                    run.elements, flat.begin() + run.extent_offset);
      }
      for (const ChunkRange& range : ChunkRanges(layout_, extent, kChunk, presence)) {
        const char* data = reinterpret_cast<const char*>(flat.data()) + range.offset_bytes;
        FrameInfo info = MakeFrame(plan_, kind, slot, round, extent, range);
        info.crc32c = Crc32c(data, range.length_bytes);
        engines_[plan_.owner[extent]]->Frame(
            info, Payload::FromString(std::string(data, range.length_bytes)));
      }
    }
  }
  void Begin(uint32_t slot, const RoundBegin& begin) {
    for (auto& [id, engine] : engines_) engine->Begin(slot, begin);
  }
  absl::Status Wait(uint64_t round) {
    for (auto& [key, sink] : sinks_) {
      if (absl::Status st = sink->Wait(round); !st.ok()) return st;
    }
    return absl::OkStatus();
  }
  std::vector<std::vector<float>> Weights(uint32_t slot) {
    std::vector<std::vector<float>> out;
    for (const LayoutTensor& tensor : layout_.tensors()) out.emplace_back(tensor.elements);
    for (uint32_t e = 0; e < layout_.extents().size(); ++e) {
      RecordingSink* sink = sinks_[{plan_.owner[e], slot}].get();
      MutexLock lock(&sink->mu_);
      const Extent& extent = layout_.extents()[e];
      for (uint32_t i = 0; i < extent.run_count && !sink->weights_[e].empty(); ++i) {
        const Run& run = layout_.runs()[extent.first_run + i];
        std::memcpy(out[run.tensor].data() + run.tensor_offset,
                    sink->weights_[e].data() + run.extent_offset * 4, run.elements * 4);
      }
    }
    return out;
  }

  JobPlan plan_;
  Layout layout_;
  RealClock clock_;
  Executor executor_;
  WorkerPool workers_;
  std::map<uint32_t, std::shared_ptr<RoundEngine>> engines_;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<RecordingSink>> sinks_;
};

std::vector<std::vector<float>> Random(const std::vector<int64_t>& sizes, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> out;
  for (const int64_t size : sizes) {
    out.emplace_back(static_cast<size_t>(size));
    for (float& x : out.back()) x = normal(rng);
  }
  return out;
}

// The specification as a plain loop: slot-order sum, one multiplication, canonical AdamW.
struct Reference {
  std::vector<std::vector<float>> p, m, v;
  std::vector<uint64_t> step;
  explicit Reference(const std::vector<std::vector<float>>& init) : p(init), step(init.size(), 0) {
    for (const auto& t : init) {
      m.emplace_back(t.size(), 0.0f);
      v.emplace_back(t.size(), 0.0f);
    }
  }
  void Step(const std::vector<std::vector<std::vector<float>>>& grads, float scale,
            const Hyper& hyper, const std::vector<bool>& touched) {
    for (size_t t = 0; t < p.size(); ++t) {
      if (!touched[t]) continue;
      const auto k =
          optim::MakeAdamWScalars(hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], ++step[t]);
      for (size_t i = 0; i < p[t].size(); ++i) {
        float sum = grads[0][t][i];
        for (size_t s = 1; s < grads.size(); ++s) sum = sum + grads[s][t][i];
        const float g = sum * scale;
        p[t][i] *= k.decay;
        m[t][i] = std::fma(k.w1, g - m[t][i], m[t][i]);
        v[t][i] = std::fma(k.w2 * g, g, v[t][i] * k.b2);
        p[t][i] = p[t][i] + k.neg_step_size * m[t][i] / (std::sqrt(v[t][i]) / k.den + k.eps);
      }
    }
  }
};

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

TEST(RoundEngineTest, SkippedRoundSendsNoWeightsAndTheNextOneApplies) {
  const std::vector<int64_t> sizes = {100};
  Cluster cluster(MakePlan(sizes, 1, {0}));
  cluster.Send(FrameKind::kInit, 0, 1, Random(sizes, 1));
  auto grads = Random(sizes, 2);
  grads[0][42] = INFINITY;
  cluster.Begin(0, MakeBegin(1));
  cluster.Send(FrameKind::kGradient, 0, 1, grads);
  ASSERT_TRUE(cluster.Wait(1).ok());
  auto& sink = cluster.sinks_[{0, 0}];
  EXPECT_FALSE(sink->result_.applied);
  EXPECT_EQ(sink->result_.round, 1u);
  EXPECT_EQ(sink->result_.nonfinite, 1u);
  EXPECT_TRUE(sink->weights_[0].empty());
  cluster.Begin(0, MakeBegin(2));
  cluster.Send(FrameKind::kGradient, 0, 2, Random(sizes, 3));
  ASSERT_TRUE(cluster.Wait(2).ok());
  EXPECT_TRUE(sink->result_.applied);
  EXPECT_EQ(sink->result_.opt_step, 1u);
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
    EXPECT_EQ(refusals, std::vector<Reason>(twice ? 5 : 0, Reason::kDuplicate));
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(RoundEngineTest, StateCanBeFetchedBetweenRounds) {
  const std::vector<int64_t> sizes = {200};
  Cluster cluster(MakePlan(sizes, 1, {0}));
  const auto init = Random(sizes, 1);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  cluster.engines_[0]->FetchState(0, 1, true, {0, 1, 2});
  cluster.Begin(0, MakeBegin(1));
  cluster.Send(FrameKind::kGradient, 0, 1, Random(sizes, 2));
  ASSERT_TRUE(cluster.Wait(1).ok());
  auto& sink = cluster.sinks_[{0, 0}];
  MutexLock lock(&sink->mu_);
  EXPECT_EQ(std::memcmp(sink->state_[{0, 0}].data(), init[0].data(), 128 * 4), 0);
  EXPECT_EQ((sink->state_[{1, 0}]), std::vector<char>(128 * 4, 0));
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
  absl::StatusOr<uint64_t> answer = absl::UnknownError("");
  bool done = false;
  cluster.engines_[0]->AttachSlot(0, 5, 1, std::make_shared<RecordingSink>(3),
                                  [&](absl::StatusOr<uint64_t> round) {
                                    MutexLock lock(&mu);
                                    answer = std::move(round);
                                    done = true;
                                    cv.NotifyAll();
                                  });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  EXPECT_EQ(ReasonOf(answer.status()), Reason::kWrongIncarnation);
}

TEST(PlanMemoryTest, NamesTheParts) {
  const JobPlan plan = MakePlan({1000}, 2, {0});
  const auto fits = PlanMemory(plan, 0, 1 << 30, 4);
  ASSERT_TRUE(fits.ok());
  EXPECT_EQ(fits->window_extents, 8u);
  EXPECT_EQ(fits->state_bytes, DramExtentBytes(128, 64) * 7 + DramExtentBytes(104, 64));
  const auto tight = PlanMemory(plan, 0, fits->total() - 1, 4);
  ASSERT_TRUE(tight.ok()) << "the window shrinks first";
  EXPECT_LT(tight->window_extents, 8u);
  const auto refused = PlanMemory(plan, 0, fits->state_bytes, 4);
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kOverBudget);
  EXPECT_NE(std::string(refused.status().message()).find("storage.dram_budget"), std::string::npos);
}

}  // namespace
}  // namespace ballast::server
