// Restarted servers: engines of one durable job whose disks lose power at any moment, driven by
// trainers that act as the client does, compared bit for bit with the plain loop.
#include "server/recovery/recovery.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/io/memory_disk.h"
#include "server/engine/round_engine.h"
#include "server/home/epoch_change.h"
#include "tests/server/engine/durable_engines.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::DurableCluster;
using testing::kDirectory;
using testing::MakeBegin;
using testing::Random;
using testing::Reference;
using testing::Trainer;

struct Shape {
  std::vector<uint32_t> servers;
  uint32_t world;
};

class PowerLoss : public ::testing::TestWithParam<int> {};

// Rounds 3, 4 and 6 are not finite, and one of two in a row is halted.
bool Poisoned(uint64_t round) { return round == 3 || round == 4 || round == 6; }

// Round 2 replaces the weights, round 7 the second moments and the step counts; the counts of
// skipped rounds stay.
bool Uploaded(uint64_t round) { return round == 2; }
bool PlaneSet(uint64_t round) { return round == 7; }

StepCounts SetSteps(size_t tensors) {
  StepCounts steps{{}, 3};
  for (size_t t = 0; t < tensors; ++t) steps.tensor.push_back(5 + 100 * t);
  return steps;
}

// Flat element 301 + 40: extent 2, element 85; the last slot's, and a later one of slot 0.
void Poison(std::vector<std::vector<std::vector<float>>>* grads) {
  grads->back()[2][40] = NAN;
  grads->front()[3][500] = INFINITY;
}

void MakePositive(std::vector<std::vector<float>>* values) {
  for (auto& tensor : *values) {
    for (float& value : tensor) value = std::fabs(value);
  }
}

void ExpectResults(uint64_t round, uint32_t world, const std::vector<RoundResult>& results) {
  const Nonfinite place{NonfiniteKind::kGradient, 2, 85, world - 1, 0x7FC00000};
  for (const RoundResult& result : results) {
    ASSERT_EQ(result.round, round);
    EXPECT_EQ(result.applied, !Poisoned(round)) << round;
    EXPECT_EQ(result.halted, round == 4) << round;
    const bool skips_before = Poisoned(round) || round == 7;
    EXPECT_EQ(result.consecutive_skips, !skips_before ? 0u : round == 4 ? 2u : 1u) << round;
    EXPECT_EQ(result.first_nonfinite, Poisoned(round) ? place : Nonfinite()) << round;
  }
}

using Grads = std::vector<std::vector<std::vector<float>>>;  // by slot and tensor

void BeginEverywhere(uint64_t round, const Grads& grads,
                     const std::vector<std::unique_ptr<Trainer>>& trainers) {
  for (size_t slot = 0; slot < trainers.size(); ++slot) {
    if (Uploaded(round)) {
      trainers[slot]->BeginUpload(grads[0]);
    } else if (PlaneSet(round)) {
      trainers[slot]->BeginUpload(grads[0], StatePlaneOf(2), SetSteps(grads[0].size()));
    } else {
      trainers[slot]->BeginRound(grads[slot]);
    }
  }
}

void RunReference(uint64_t round, const Grads& grads, Reference* reference) {
  if (Uploaded(round)) {
    reference->p = grads[0];
  } else if (PlaneSet(round)) {
    reference->v = grads[0];
    reference->step = SetSteps(grads[0].size()).tensor;
  } else {
    reference->Step(grads, 1.0f / static_cast<float>(grads.size()), MakeBegin(round).hyper[0],
                    std::vector<bool>(reference->p.size(), !Poisoned(round)));
  }
}

// Every weight has the reference's bits.
void ExpectWeights(const Trainer& trainer, const Reference& reference, const std::string& where) {
  for (size_t t = 0; t < reference.p.size(); ++t) {
    const std::vector<float>& got = trainer.weights()[t];
    ASSERT_EQ(std::memcmp(got.data(), reference.p[t].data(), got.size() * 4), 0)
        << where << " tensor " << t;
  }
}

// A job whose servers lose power, and whose seats change hands, as `rng` says.
struct UnsteadyJob {
  UnsteadyJob(uint32_t seed, const Shape& how, const std::vector<int64_t>& sizes,
              const std::function<uint32_t()>& nvme_extents)
      : rng(seed),
        shape(how),
        cluster(sizes, how.world, how.servers, seed, nvme_extents),
        init(Random(sizes, seed)) {
    for (uint32_t s = 0; s < how.world; ++s) {
      trainers.push_back(std::make_unique<Trainer>(&cluster, s, init));
    }
  }

  void Attach(uint32_t id) {
    for (const auto& trainer : trainers) trainer->Attach(id);
  }

  void MaybeRestart(uint32_t one_in) {
    if (rng() % one_in != 0) return;
    const uint32_t id = shape.servers[rng() % shape.servers.size()];
    const uint32_t mood = rng() % 3;  // Keeps all, loses all, or each write on its own.
    const auto restart = [&] {
      cluster.Restart(id, [&]() -> uint64_t { return mood == 0 ? 0 : mood == 1 ? 1 : rng(); });
    };
    if (rng() % 3 != 0) {
      restart();
      return Attach(id);
    }
    uint64_t steps = rng() % 20;  // until the power goes off
    cluster.ChangeEpoch(static_cast<uint32_t>(rng() % shape.world), [&] {
      if (steps-- == 0) restart();
    });
    for (const uint32_t each : shape.servers) Attach(each);
  }

  // Pushes every extent of every slot, in random order.
  void PushAll() {
    std::vector<std::pair<uint32_t, uint32_t>> pushes;
    for (uint32_t s = 0; s < shape.world; ++s) {
      for (uint32_t e = 0; e < cluster.layout().extents().size(); ++e) pushes.push_back({s, e});
    }
    std::shuffle(pushes.begin(), pushes.end(), rng);
    for (const auto& [slot, extent] : pushes) {
      trainers[slot]->PushExtent(extent);
      MaybeRestart(20);
    }
  }

  std::mt19937 rng;
  const Shape shape;
  DurableCluster cluster;
  const std::vector<std::vector<float>> init;
  std::vector<std::unique_ptr<Trainer>> trainers;
};

// Random servers lose power, and seats change hands, between any two pushes and while the round is
// decided.
void RunThroughPowerLoss(uint32_t seed, const std::vector<int64_t>& sizes,
                         const std::function<uint32_t()>& nvme_extents) {
  const std::vector<Shape> shapes = {{{0}, 1}, {{0}, 2}, {{1, 4}, 1}, {{1, 4}, 2}, {{1, 2, 7}, 2}};
  UnsteadyJob job(seed, shapes[seed % shapes.size()], sizes, nvme_extents);
  Reference reference(job.init);
  for (uint64_t round = 1; round <= 8; ++round) {
    std::vector<std::vector<std::vector<float>>> grads;
    for (uint32_t s = 0; s < job.shape.world; ++s) {
      grads.push_back(Random(sizes, static_cast<uint32_t>(seed * 1000 + round * 10 + s)));
    }
    if (Poisoned(round)) Poison(&grads);
    if (PlaneSet(round)) MakePositive(&grads[0]);
    BeginEverywhere(round, grads, job.trainers);
    job.PushAll();
    job.MaybeRestart(2);
    job.MaybeRestart(4);
    for (const auto& trainer : job.trainers) {
      trainer->EndRound();
      ExpectResults(round, job.shape.world, trainer->results());
    }
    RunReference(round, grads, &reference);
    for (const auto& trainer : job.trainers) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectWeights(*trainer, reference, absl::StrCat("seed ", seed, " round ", round)));
    }
  }
}

TEST_P(PowerLoss, ChangesNoBit) {
  RunThroughPowerLoss(static_cast<uint32_t>(GetParam()), {300, 1, 77, 640, 129}, [] { return 0; });
}

// The same with more extents than a server keeps in memory, or almost; every start may give
// another tier.
TEST_P(PowerLoss, ChangesNoBitOnNvme) {
  const auto seed = static_cast<uint32_t>(GetParam());
  std::mt19937 rng(seed + 1000);
  RunThroughPowerLoss(seed, {300, 1, 77, 1840, 1129}, [&rng]() -> uint32_t {
    const uint32_t extents[] = {4, 4, 5, 9, 64, 0};
    return extents[rng() % 6];
  });
}

const std::vector<int64_t> kNvmeSizes = {300, 1, 77, 1840, 1129};

// One server with 27 extents, four of them in memory, and a trainer.
struct NvmeJob {
  explicit NvmeJob(uint32_t seed)
      : init(Random(kNvmeSizes, seed)),
        cluster(kNvmeSizes, 1, {0}, seed, [] { return 4; }),
        reference(init),
        trainer(&cluster, 0, init) {}

  void Begin() {
    const uint64_t round = trainer.round();
    grads = {Random(kNvmeSizes, static_cast<uint32_t>(round))};
    trainer.BeginRound(grads[0]);
    for (uint32_t e = 0; e < cluster.layout().extents().size(); ++e) trainer.PushExtent(e);
  }
  void Round() {
    Begin();
    trainer.EndRound();
    reference.Step(grads, 1.0f, MakeBegin(trainer.round() - 1).hyper[0],
                   std::vector<bool>(kNvmeSizes.size(), true));
  }

  const std::vector<std::vector<float>> init;
  DurableCluster cluster;
  Reference reference;
  Trainer trainer;
  std::vector<std::vector<std::vector<float>>> grads;
};

TEST(NvmeJobTest, StateGoesOutThoughItDoesNotFit) {
  NvmeJob job(1);
  for (int rounds = 0; rounds < 3; ++rounds) {
    const auto arrays = job.trainer.FetchArrays();
    EXPECT_EQ(arrays[0], job.reference.p) << rounds;
    EXPECT_EQ(arrays[1], job.reference.m) << rounds;
    EXPECT_EQ(arrays[2], job.reference.v) << rounds;
    job.Round();
    if (rounds == 1) {
      job.cluster.Restart(0, [] { return 1; });
      job.trainer.Attach(0);
    }
  }
}

TEST(NvmeJobTest, AReadThatFailsNamesExtentAndVersion) {
  NvmeJob job(2);
  job.Round();
  job.Round();
  job.cluster.Disk(0)->Fail(MemoryDisk::Operation::kRead, 3, EIO);
  job.Begin();
  const absl::Status failure = job.cluster.Failure();
  EXPECT_EQ(ReasonOf(failure), Reason::kStorageFailed) << failure;
  for (const char* word : {"version", "extent", "slots"}) {
    EXPECT_NE(std::string(failure.message()).find(word), std::string::npos) << failure;
  }
  // Nothing was lost: the disk reads again after the restart.
  job.cluster.Restart(0, [] { return 1; });
  job.trainer.Attach(0);
  job.trainer.EndRound();
  job.reference.Step(job.grads, 1.0f, MakeBegin(3).hyper[0],
                     std::vector<bool>(kNvmeSizes.size(), true));
  job.Round();
  EXPECT_EQ(job.trainer.weights(), job.reference.p);
}

TEST(NvmeJobTest, ADamagedSlotIsNeverSteppedOn) {
  NvmeJob job(3);
  job.Round();
  job.Round();
  const std::string path = std::string(kDirectory) + "/slots";
  for (uint64_t at = 100; job.cluster.Disk(0)->FlipBit(path, at, 2).ok(); at += kPageBytes) {
  }
  job.Begin();
  const absl::Status failure = job.cluster.Failure();
  EXPECT_EQ(ReasonOf(failure), Reason::kStorageFailed) << failure;
  EXPECT_NE(std::string(failure.message()).find("is damaged"), std::string::npos) << failure;
}

TEST(NvmeJobTest, AWriteOrFlushThatFailsIsNamed) {
  struct Case {
    MemoryDisk::Operation operation;
    int error;
  };
  const Case cases[] = {
      {MemoryDisk::Operation::kWrite, EIO},
      {MemoryDisk::Operation::kWrite, ENOSPC},
      {MemoryDisk::Operation::kSync, EIO},
  };
  for (const Case& c : cases) {
    NvmeJob job(4);
    job.Round();
    job.cluster.Disk(0)->FailNext(c.operation, std::string(kDirectory) + "/slots", c.error);
    job.Begin();
    const absl::Status failure = job.cluster.Failure();
    EXPECT_EQ(ReasonOf(failure), Reason::kStorageFailed) << failure;
    EXPECT_NE(std::string(failure.message()).find("/slots"), std::string::npos) << failure;
  }
}

// The result announces as many bytes as come: a client refuses more.
TEST(Recovery, ATrainerThatMissedTheEndOfARoundGetsAllOfIt) {
  const std::vector<int64_t> sizes = {900, 5};
  DurableCluster cluster(sizes, /*world=*/1, {0}, /*seed=*/1);
  Trainer trainer(&cluster, 0, Random(sizes, 1));
  trainer.BeginRound(Random(sizes, 2));
  uint64_t bytes = 0;
  for (uint32_t e = 0; e < cluster.layout().extents().size(); ++e) {
    bytes += cluster.layout().ExtentWireBytes(e);
    trainer.PushExtent(e);
  }
  while (!trainer.Ended(0)) std::this_thread::yield();
  trainer.Attach(0);
  trainer.EndRound();
  EXPECT_EQ(trainer.results().front().weight_bytes, bytes);
}

// A trainer that crashes at the same batch each time: the dead attempts at one round are many times
// the size of the log.
TEST(Recovery, OneRoundInSixtyEpochsFillsNoLogAndChangesNoBit) {
  constexpr int kEpochs = 60;
  constexpr uint64_t kRepeated = 3;
  const std::vector<int64_t> sizes = {9000, 5000};
  const std::vector<uint32_t> servers = {1, 4};
  DurableCluster cluster(sizes, /*world=*/2, servers, /*seed=*/1);
  std::mt19937 rng(1);
  const auto init = Random(sizes, 1);
  Reference reference(init);
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const uint32_t s : {0, 1}) trainers.push_back(std::make_unique<Trainer>(&cluster, s, init));
  const auto attach = [&](uint32_t id) {
    for (const auto& trainer : trainers) trainer->Attach(id);
  };
  const auto extents = static_cast<uint32_t>(cluster.layout().extents().size());
  for (uint64_t round = 1; round <= kRepeated + 2; ++round) {
    std::vector<std::vector<std::vector<float>>> grads;
    for (const uint32_t s : {0, 1}) {
      grads.push_back(Random(sizes, static_cast<uint32_t>(round * 10 + s)));
      trainers[s]->BeginRound(grads.back());
      // One server has all of the round, and votes.
      for (uint32_t e = s; e < extents; ++e) trainers[s]->PushExtent(e);
    }
    for (int i = 0; i < kEpochs && round == kRepeated; ++i) {
      cluster.ChangeEpoch(1);
      const uint32_t id = servers[rng() % 2];
      if (i % 20 == 0) cluster.Restart(id, [&] { return rng(); });
      for (const uint32_t each : servers) attach(each);
      if (i % 20 == 19) {
        cluster.Restart(id, [&] { return rng(); });
        attach(id);
      }
    }
    trainers[1]->PushExtent(0);
    for (const auto& trainer : trainers) trainer->EndRound();
    reference.Step(grads, 0.5f, MakeBegin(round).hyper[0], std::vector<bool>(sizes.size(), true));
    ASSERT_NO_FATAL_FAILURE(ExpectWeights(*trainers[0], reference, absl::StrCat("round ", round)));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PowerLoss, ::testing::Range(0, 60));

}  // namespace
}  // namespace ballast::server
