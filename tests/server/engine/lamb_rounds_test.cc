// LAMB's rounds: over servers and trainers, through power loss and changes of epoch, in memory and
// on NVMe, compared bit for bit with the plain loops of lamb_reference.h, and nearly with doubles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/server/engine/durable_engines.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/recovery/lamb_reference.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::BeginOf;
using testing::Cluster;
using testing::DurableCluster;
using testing::kLambHyperOfTests;
using testing::LambReference;
using testing::MakePlan;
using testing::Random;
using testing::Trainer;
using testing::UseLamb;
using testing::WithLamb;

using Grads = std::vector<std::vector<std::vector<float>>>;  // by slot and tensor

void ExpectSame(const std::vector<std::vector<float>>& got,
                const std::vector<std::vector<float>>& wanted, const std::string& where) {
  for (size_t t = 0; t < wanted.size(); ++t) {
    ASSERT_EQ(std::memcmp(got[t].data(), wanted[t].data(), got[t].size() * 4), 0)
        << where << " tensor " << t;
  }
}

class LambRounds : public ::testing::TestWithParam<std::tuple<int, int>> {};

// Tensors cross tiles and extents, so that several servers hold parts of one. In round 3 tensor 2
// has no gradient anywhere, tensor 3 only at the last slot. Tensor 5 is 0, and so is its ratio's
// numerator.
TEST_P(LambRounds, EqualThePlainLoopBitForBit) {
  const auto [servers, world] = GetParam();
  std::vector<uint32_t> ids;
  for (int s = 0; s < servers; ++s) ids.push_back(static_cast<uint32_t>(3 * s + 1));
  const std::vector<int64_t> sizes = {300, 1, 77, 640, 129, 10};
  JobPlan plan = WithLamb(MakePlan(sizes, static_cast<uint32_t>(world), ids));
  Cluster cluster(plan);
  auto init = Random(sizes, 1);
  std::fill(init[5].begin(), init[5].end(), 0.0f);
  LambReference reference(init, cluster.layout_);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  for (uint64_t round = 1; round <= 5; ++round) {
    Grads grads;
    std::vector<bool> touched(sizes.size(), true);
    for (int w = 0; w < world; ++w) {
      const auto slot = static_cast<uint32_t>(w);
      grads.push_back(Random(sizes, static_cast<uint32_t>(round * 100 + slot)));
      std::vector<bool> presence;
      if (round == 3) presence = {true, true, false, w == world - 1, true, true};
      for (size_t t = 0; t < presence.size(); ++t) {
        if (!presence[t]) std::fill(grads.back()[t].begin(), grads.back()[t].end(), 0.0f);
      }
      if (round == 3) touched[2] = false;
      cluster.Begin(slot, BeginOf(plan, round, presence));
      cluster.Send(FrameKind::kGradient, slot, round, grads.back(), presence);
    }
    ASSERT_TRUE(cluster.Wait(round).ok());
    reference.Step(grads, 1.0f / static_cast<float>(world), kLambHyperOfTests, touched);
    for (int w = 0; w < world; ++w) {
      ASSERT_NO_FATAL_FAILURE(ExpectSame(cluster.Weights(static_cast<uint32_t>(w)), reference.p,
                                         absl::StrCat("round ", round, " slot ", w)));
    }
  }
  const auto arrays = cluster.FetchArrays(6);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(arrays[0], reference.p, "master"));
  ASSERT_NO_FATAL_FAILURE(ExpectSame(arrays[1], reference.m, "exp_avg"));
  ASSERT_NO_FATAL_FAILURE(ExpectSame(arrays[2], reference.v, "exp_avg_sq"));
}

INSTANTIATE_TEST_SUITE_P(ServersAndTrainers, LambRounds,
                         ::testing::Combine(::testing::Values(1, 2, 7),
                                            ::testing::Values(1, 2, 4)));

// LAMB over one tensor in double.
struct DoubleLamb {
  std::vector<double> p, m = std::vector<double>(p.size()), v = m, u = m;

  void Step(const std::vector<float>& grad, double scale, const Hyper& hyper, double t) {
    double squares_p = 0, squares_u = 0;
    const double bc1 = 1 - std::pow(hyper[1], t), bc2 = 1 - std::pow(hyper[2], t);
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = scale * grad[i];
      m[i] = hyper[1] * m[i] + (1 - hyper[1]) * g;
      v[i] = hyper[2] * v[i] + (1 - hyper[2]) * g * g;
      u[i] = m[i] / bc1 / (std::sqrt(v[i] / bc2) + hyper[3]) + hyper[4] * p[i];
      squares_p += p[i] * p[i];
      squares_u += u[i] * u[i];
    }
    const double step = hyper[0] * std::sqrt(squares_p / squares_u);
    for (size_t i = 0; i < p.size(); ++i) p[i] -= step * u[i];
  }
};

// The factor of clipping is part of u, so it must reach the first pass.
TEST(LambRoundsTest, WithClippingStayCloseToDoublePrecision) {
  const std::vector<int64_t> sizes = {1003, 50};
  JobPlan plan = WithLamb(MakePlan(sizes, 1, {0, 1}));
  plan.spec.max_grad_norm = 1.0;
  Cluster cluster(plan);
  const auto init = Random(sizes, 7);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  std::vector<DoubleLamb> exact;
  for (const auto& tensor : init) exact.push_back({.p = {tensor.begin(), tensor.end()}});
  for (uint64_t round = 1; round <= 20; ++round) {
    const auto grads = Random(sizes, static_cast<uint32_t>(round + 10));
    cluster.Begin(0, BeginOf(plan, round));
    cluster.Send(FrameKind::kGradient, 0, round, grads);
    ASSERT_TRUE(cluster.Wait(round).ok());
    const double clip = cluster.sinks_[{0, 0}]->result_.clip_coef;
    ASSERT_LT(clip, 0.1);
    for (size_t t = 0; t < sizes.size(); ++t) {
      exact[t].Step(grads[t], clip, kLambHyperOfTests, static_cast<double>(round));
    }
  }
  const auto weights = cluster.Weights(0);
  for (size_t t = 0; t < sizes.size(); ++t) {
    for (size_t i = 0; i < exact[t].p.size(); ++i) {
      ASSERT_NEAR(weights[t][i], exact[t].p[i],
                  1e-6 * (std::fabs(exact[t].p[i]) + kLambHyperOfTests[0] * 20))
          << t << " " << i;
    }
  }
}

TEST(LambRoundsTest, ARoundThatIsSkippedTakesNoSecondPass) {
  const std::vector<int64_t> sizes = {300};
  JobPlan plan = WithLamb(MakePlan(sizes, 1, {0, 1}));
  Cluster cluster(plan);
  const auto init = Random(sizes, 1);
  LambReference reference(init, cluster.layout_);
  cluster.Send(FrameKind::kInit, 0, 1, init);
  for (uint64_t round = 1; round <= 4; ++round) {
    auto grads = Random(sizes, static_cast<uint32_t>(round));
    if (round % 2 == 0) grads[0][42] = NAN;
    cluster.Begin(0, BeginOf(plan, round));
    cluster.Send(FrameKind::kGradient, 0, round, grads);
    ASSERT_TRUE(cluster.Wait(round).ok());
    if (round % 2 == 1) reference.Step({grads}, 1.0f, kLambHyperOfTests, {true});
    ASSERT_NO_FATAL_FAILURE(
        ExpectSame(cluster.Weights(0), reference.p, absl::StrCat("round ", round)));
  }
}

// Servers that lose power, and seats that change hands, as `rng` says.
struct UnsteadyLamb {
  UnsteadyLamb(uint32_t seed, std::vector<uint32_t> ids, uint32_t world,
               const std::vector<int64_t>& sizes, const std::function<uint32_t()>& nvme_extents)
      : rng(seed),
        servers(std::move(ids)),
        cluster(sizes, world, servers, seed, nvme_extents, UseLamb),
        init(Random(sizes, seed)) {
    for (uint32_t s = 0; s < world; ++s) {
      trainers.push_back(std::make_unique<Trainer>(&cluster, s, init));
    }
  }

  void MaybeRestart(uint32_t one_in) {
    if (rng() % one_in != 0) return;
    const uint32_t id = servers[rng() % servers.size()];
    const uint32_t mood = rng() % 3;  // Keeps all, loses all, or each write on its own.
    const auto restart = [&] {
      cluster.Restart(id, [&]() -> uint64_t { return mood == 0 ? 0 : mood == 1 ? 1 : rng(); });
    };
    if (rng() % 3 != 0) {
      restart();
      for (const auto& trainer : trainers) trainer->Attach(id);
      return;
    }
    uint64_t steps = rng() % 20;  // until the power goes off
    cluster.ChangeEpoch(static_cast<uint32_t>(rng() % trainers.size()), [&] {
      if (steps-- == 0) restart();
    });
    for (const uint32_t each : servers) {
      for (const auto& trainer : trainers) trainer->Attach(each);
    }
  }

  void Round(const Grads& grads) {
    for (size_t s = 0; s < trainers.size(); ++s) trainers[s]->BeginRound(grads[s]);
    for (uint32_t e = 0; e < cluster.layout().extents().size(); ++e) {
      for (const auto& trainer : trainers) {
        trainer->PushExtent(e);
        MaybeRestart(20);
      }
    }
    // While the round is decided, measured, settled and stepped.
    for (int i = 0; i < 3; ++i) MaybeRestart(2);
    for (const auto& trainer : trainers) trainer->EndRound();
  }

  std::mt19937 rng;
  const std::vector<uint32_t> servers;
  DurableCluster cluster;
  const std::vector<std::vector<float>> init;
  std::vector<std::unique_ptr<Trainer>> trainers;
};

class LambPowerLoss : public ::testing::TestWithParam<int> {
 protected:
  void Run(const std::vector<int64_t>& sizes, const std::function<uint32_t()>& nvme_extents) {
    const auto seed = static_cast<uint32_t>(GetParam());
    const std::vector<std::vector<uint32_t>> servers = {{0}, {1, 4}, {1, 2, 7}};
    UnsteadyLamb job(seed, servers[seed % 3], 1 + seed / 3 % 2, sizes, nvme_extents);
    LambReference reference(job.init, job.cluster.layout());
    const size_t world = job.trainers.size();
    for (uint64_t round = 1; round <= 6; ++round) {
      Grads grads;
      for (uint32_t s = 0; s < world; ++s) {
        grads.push_back(Random(sizes, static_cast<uint32_t>(seed * 1000 + round * 10 + s)));
      }
      job.Round(grads);
      if (HasFatalFailure()) return;
      reference.Step(grads, 1.0f / static_cast<float>(world), kLambHyperOfTests,
                     std::vector<bool>(sizes.size(), true));
      for (const auto& trainer : job.trainers) {
        ASSERT_NO_FATAL_FAILURE(ExpectSame(trainer->weights(), reference.p,
                                           absl::StrCat("seed ", seed, " round ", round)));
      }
    }
    const auto arrays = job.trainers[0]->FetchArrays();
    ASSERT_NO_FATAL_FAILURE(ExpectSame(arrays[1], reference.m, "exp_avg"));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(arrays[2], reference.v, "exp_avg_sq"));
  }
};

TEST_P(LambPowerLoss, ChangesNoBit) {
  Run({300, 1, 77, 640, 129}, [] { return 0; });
}

// With more extents than a server keeps in memory, or almost.
TEST_P(LambPowerLoss, ChangesNoBitOnNvme) {
  std::mt19937 rng(static_cast<uint32_t>(GetParam()) + 1000);
  Run({300, 1, 77, 1840, 1129}, [&rng]() -> uint32_t {
    const uint32_t extents[] = {4, 4, 5, 9, 64, 0};
    return extents[rng() % 6];
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, LambPowerLoss, ::testing::Range(0, 24));

}  // namespace
}  // namespace ballast::server
