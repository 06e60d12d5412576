// Captured state: a snapshot taken while rounds continue has, bit for bit, the state that its round
// began with on every server, in memory and on NVMe, whatever was checkpointed when.
#include "server/recovery/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "common/base/clock.h"
#include "common/base/reason.h"
#include "common/faults/failpoint.h"
#include "server/recovery/resting_state.h"
#include "tests/server/engine/durable_engines.h"

namespace ballast::server {
namespace {

using testing::DurableCluster;
using ::testing::HasSubstr;
using testing::Random;
using testing::Trainer;

using Arrays = std::vector<std::vector<std::vector<float>>>;  // p, m, v; by tensor

// What TakeExtent got, as arrays of tensors; may be held up.
class Taken {
 public:
  explicit Taken(const Layout& layout) : layout_(layout), arrays_(3) {
    for (const LayoutTensor& tensor : layout.tensors()) {
      for (auto& array : arrays_) array.emplace_back(tensor.elements, -1.0f);
    }
  }
  TakeExtent Take() {
    return [this](uint32_t extent, const void* image) {
      MutexLock lock(&mu_);
      ++waiting_;
      changed_.NotifyAll();
      while (held_up_) changed_.Wait(&mu_);
      Unpack(extent, static_cast<const float*>(image));
      return absl::OkStatus();
    };
  }
  void HoldUp() {
    MutexLock lock(&mu_);
    held_up_ = true;
  }
  void GoOn() {
    MutexLock lock(&mu_);
    held_up_ = false;
    changed_.NotifyAll();
  }
  void WaitForFirst() {
    MutexLock lock(&mu_);
    while (waiting_ == 0) changed_.Wait(&mu_);
  }
  Arrays arrays() {
    MutexLock lock(&mu_);
    return arrays_;
  }

 private:
  void Unpack(uint32_t number, const float* image) {
    const Extent& extent = layout_.extents()[number];
    std::vector<std::vector<float>> arrays(3);
    for (uint32_t at = 0; at < extent.elements; at += layout_.tile_elements()) {
      const uint32_t count = std::min(layout_.tile_elements(), extent.elements - at);
      for (auto& array : arrays) {
        array.insert(array.end(), image, image + count);
        image += count;
      }
    }
    for (uint32_t i = 0; i < extent.run_count; ++i) {
      const Run& run = layout_.runs()[extent.first_run + i];
      for (size_t a = 0; a < arrays.size(); ++a) {
        std::copy_n(arrays[a].begin() + run.extent_offset, run.elements,
                    arrays_[a][run.tensor].begin() + static_cast<int64_t>(run.tensor_offset));
      }
    }
  }

  const Layout& layout_;
  Mutex mu_;
  CondVar changed_;
  bool held_up_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  Arrays arrays_ ABSL_GUARDED_BY(mu_);
};

// A job that runs, and the state that each of its rounds began with.
class CapturedJob {
 public:
  CapturedJob(uint32_t seed, std::vector<uint32_t> servers, bool nvme)
      : seed_(seed),
        servers_(std::move(servers)),
        cluster_(sizes_, /*world=*/2, servers_, seed, [nvme] { return nvme ? 4u : 0u; }),
        taken_(cluster_.layout()) {
    const auto init = Random(sizes_, seed);
    for (const uint32_t s : {0, 1}) {
      trainers_.push_back(std::make_unique<Trainer>(&cluster_, s, init));
    }
    began_[1] = trainers_[0]->FetchArrays();
  }

  // `middle` runs when half of the gradients have been pushed.
  void Round(const std::function<void()>& middle = [] {}) {
    const uint64_t round = trainers_[0]->round();
    const auto extents = static_cast<uint32_t>(cluster_.layout().extents().size());
    for (uint32_t s = 0; s < trainers_.size(); ++s) {
      if (s == 1) middle();
      trainers_[s]->BeginRound(
          Random(sizes_, static_cast<uint32_t>(seed_ * 1000 + round * 10 + s)));
      for (uint32_t e = 0; e < extents; ++e) trainers_[s]->PushExtent(e);
    }
    for (const auto& trainer : trainers_) trainer->EndRound();
    began_[round + 1] = trainers_[0]->FetchArrays();
  }

  absl::StatusOr<uint64_t> Hold(uint32_t server) {
    std::promise<absl::StatusOr<uint64_t>> held;
    cluster_.Engine(server)->captures().HoldState(
        [&](absl::StatusOr<uint64_t> round) { held.set_value(std::move(round)); });
    return held.get_future().get();
  }
  // The latest of all servers' rounds.
  absl::StatusOr<uint64_t> HoldAll() {
    uint64_t latest = 0;
    for (const uint32_t server : servers_) {
      const absl::StatusOr<uint64_t> round = Hold(server);
      if (!round.ok()) return round;
      latest = std::max(latest, *round);
    }
    return latest;
  }
  using Result = std::future<absl::StatusOr<CapturedRound>>;
  Result Capture(uint32_t server, uint64_t round) {
    const auto result = std::make_shared<std::promise<absl::StatusOr<CapturedRound>>>();
    cluster_.Engine(server)->captures().CaptureState(
        round, taken_.Take(),
        [result](absl::StatusOr<CapturedRound> end) { result->set_value(std::move(end)); });
    return result->get_future();
  }
  std::vector<Result> CaptureAll(uint64_t round) {
    std::vector<Result> results;
    for (const uint32_t server : servers_) results.push_back(Capture(server, round));
    return results;
  }
  void ExpectCaptured(uint64_t round, std::vector<Result> results) {
    for (Result& result : results) {
      const absl::StatusOr<CapturedRound> end = result.get();
      ASSERT_TRUE(end.ok()) << end.status();
      EXPECT_EQ(end->prepared.round, round - 1);
      EXPECT_EQ(end->decision.round, round - 1);
    }
    const Arrays arrays = taken_.arrays();
    for (size_t array = 0; array < arrays.size(); ++array) {
      for (size_t t = 0; t < sizes_.size(); ++t) {
        ASSERT_EQ(std::memcmp(arrays[array][t].data(), began_.at(round)[array][t].data(),
                              arrays[array][t].size() * 4),
                  0)
            << "seed " << seed_ << " round " << round << " array " << array << " tensor " << t;
      }
    }
  }

  // Adds a group to the job of server 0 between two rounds, without its weights.
  void Grow() {
    MemoryDisk* const disk = cluster_.Disk(0);
    JobPlan grown = testing::Grown(cluster_.plan(), 100, trainers_[0]->round());
    const Layout layout = testing::LayoutOf(grown);
    GrowthFiles files;
    files.make = [&](const JobPlan& plan) {
      return JobStorage::Create(disk, "/jobs/2", StorageOptionsOf(plan, layout, 0, 2));
    };
    files.save = [](const JobPlan&) { return absl::OkStatus(); };
    files.drop_old = [](const JobPlan&) {};
    for (const bool growing : {true, false}) {
      grown.growing = growing;
      std::promise<absl::Status> extended;
      cluster_.Engine(0)->changes().Extend(
          {grown, 64, files, [&](const absl::Status& status) { extended.set_value(status); }});
      const absl::Status status = extended.get_future().get();
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  // The state on the disk of a server that has ended.
  absl::StatusOr<std::shared_ptr<RestingState>> AtRest(uint32_t server) {
    const JobPlan& plan = cluster_.plan();
    auto storage = JobStorage::Open(cluster_.Disk(server), testing::kDirectory,
                                    StorageOptionsOf(plan, cluster_.layout(), server, 2));
    if (!storage.ok()) return storage.status();
    return RestingState::Open(plan, server, *std::move(storage), simd::DetectIsa());
  }
  static Result Done(absl::StatusOr<CapturedRound> end) {
    std::promise<absl::StatusOr<CapturedRound>> done;
    done.set_value(std::move(end));
    return done.get_future();
  }

  DurableCluster& cluster() { return cluster_; }
  Taken& taken() { return taken_; }

 private:
  const std::vector<int64_t> sizes_ = {900, 5, 2000, 333, 1200};
  const uint32_t seed_;
  const std::vector<uint32_t> servers_;
  DurableCluster cluster_;
  Taken taken_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::map<uint64_t, Arrays> began_;
};

class CaptureTest : public ::testing::TestWithParam<std::tuple<int, bool>> {};

// One server is asked in the middle of a round and the others after it: they agree on a round that
// some of them are still to begin.
TEST_P(CaptureTest, StateIsThatOfOneRoundOnAllServersWhileRoundsGoOn) {
  const auto [seed, nvme] = GetParam();
  const std::vector<std::vector<uint32_t>> clusters = {{0}, {1, 4}, {0, 2, 3}};
  const std::vector<uint32_t> servers = clusters[static_cast<size_t>(seed) % 3];
  CapturedJob job(static_cast<uint32_t>(seed), servers, nvme);
  for (int round = 0; round < 1 + seed / 3; ++round) job.Round();
  uint64_t at = 0;
  std::vector<CapturedJob::Result> results;
  job.Round([&] {
    const auto held = job.HoldAll();
    ASSERT_TRUE(held.ok()) << held.status();
    at = *held + (seed % 2);  // the next one has not begun yet
    results = job.CaptureAll(at);
    if (at == *held) job.taken().WaitForFirst();
  });
  job.Round();
  job.ExpectCaptured(at, std::move(results));
  job.Round();
  EXPECT_TRUE(job.HoldAll().ok()) << "the first one has ended";
}

INSTANTIATE_TEST_SUITE_P(Seeds, CaptureTest,
                         ::testing::Combine(::testing::Range(0, 9), ::testing::Bool()));

// Round 1 is decided, and its extents are being stepped.
TEST(CaptureBeginning, WhileTheFirstRoundIsAppliedItsBeginningIsCaptured) {
  CapturedJob job(5, {0}, /*nvme=*/true);
  ASSERT_TRUE(Failpoints::Configure("weights.before_tell=pause").ok());
  absl::StatusOr<uint64_t> held = absl::UnknownError("not asked");
  std::thread asks([&] {
    Failpoints::WaitForPause("weights.before_tell");
    std::promise<absl::StatusOr<uint64_t>> answer;
    job.cluster().Engine(0)->captures().HoldState(
        [&](absl::StatusOr<uint64_t> round) { answer.set_value(std::move(round)); });
    ASSERT_TRUE(Failpoints::Configure("weights.before_tell=sleep(1)").ok());
    held = answer.get_future().get();
  });
  job.Round();
  asks.join();
  Failpoints::Reset();
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(*held, 1u);
  job.ExpectCaptured(*held, job.CaptureAll(*held));
}

TEST(CaptureGivenUp, RoundsDoNotWaitForACaptureThatHoldsTheLogUp) {
  CapturedJob job(1, {0}, false);
  job.Round();
  const auto held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  job.taken().HoldUp();
  auto result = job.Capture(0, *held);
  job.taken().WaitForFirst();
  for (int round = 0; round < 20; ++round) job.Round();
  job.taken().GoOn();
  const auto end = result.get();
  EXPECT_EQ(end.status().code(), absl::StatusCode::kAborted) << end.status();
  EXPECT_THAT(std::string(end.status().message()), HasSubstr("storage.checkpoint_rounds"));
  const auto again = job.HoldAll();
  ASSERT_TRUE(again.ok()) << again.status();
  std::vector<CapturedJob::Result> results = job.CaptureAll(*again);
  job.ExpectCaptured(*again, std::move(results));
}

// The home that had it held has ended, and has started again since.
TEST(CaptureGivenUp, AnEarlierSnapshotsHoldIsReleased) {
  CapturedJob job(3, {0}, false);
  job.Round();
  auto held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(job.Hold(0).status().code(), absl::StatusCode::kAborted);
  held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  auto waits = job.Capture(0, *held + 5);
  EXPECT_EQ(job.Hold(0).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(waits.get().status().code(), absl::StatusCode::kAborted);
  held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  job.ExpectCaptured(*held, job.CaptureAll(*held));
}

TEST(CaptureGivenUp, ReleasedStateIsNotCaptured) {
  CapturedJob job(2, {0}, false);
  job.Round();
  auto held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  auto waits = job.Capture(0, *held + 5);
  job.cluster().Engine(0)->captures().ReleaseState();
  EXPECT_EQ(waits.get().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job.Capture(0, *held).get().status().code(), absl::StatusCode::kFailedPrecondition);

  held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  job.taken().HoldUp();
  auto runs = job.Capture(0, *held);
  job.taken().WaitForFirst();
  job.cluster().Engine(0)->captures().ReleaseState();
  EXPECT_EQ(job.Hold(0).status().code(), absl::StatusCode::kAborted) << "it has not ended";
  job.taken().GoOn();
  EXPECT_EQ(runs.get().status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(job.HoldAll().ok());
}

TEST(CaptureGivenUp, ThereIsNoRoundZero) {
  CapturedJob job(6, {0}, false);
  job.Round();
  ASSERT_TRUE(job.HoldAll().ok());
  EXPECT_EQ(job.Capture(0, 0).get().status().code(), absl::StatusCode::kInvalidArgument);
}

// The hold belongs to the old layout: the snapshot is taken again, not short of extents.
TEST(CaptureGivenUp, AJobThatHasGrownIsCapturedAgain) {
  for (const bool nvme : {false, true}) {
    CapturedJob job(8, {0}, nvme);
    job.Round();
    const auto held = job.HoldAll();
    ASSERT_TRUE(held.ok()) << held.status();
    job.Grow();
    const absl::Status status = job.Capture(0, *held).get().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has grown"));
    // The new group's weights are on no disk yet, which is no reason to hang or to give up later.
    EXPECT_EQ(job.Hold(0).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(job.Hold(0).status().code(), absl::StatusCode::kNotFound);
  }
}

// A hold that fails during a release leaves nothing over.
TEST(CaptureGivenUp, TheNextSnapshotIsNotGivenUpForTheOneBefore) {
  CapturedJob job(7, {0}, false);
  job.Round();
  ASSERT_TRUE(job.HoldAll().ok());
  EXPECT_FALSE(job.Hold(0).ok());
  job.cluster().Engine(0)->captures().ReleaseState();
  job.cluster().Engine(0)->captures().ReleaseState();
  EXPECT_TRUE(job.HoldAll().ok());
}

TEST(CaptureGivenUp, AJobThatEndsBreaksItOff) {
  CapturedJob job(3, {0}, false);
  job.Round();
  const auto held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  auto waits = job.Capture(0, *held + 5);
  job.cluster().Engine(0)->Fail(absl::CancelledError("the test ends it"));
  EXPECT_EQ(waits.get().status().message(), "the test ends it");
  EXPECT_EQ(job.Hold(0).status().message(), "the test ends it");
}

// Also when rounds have begun and ended since it was held.
TEST(CaptureTest, TheFirstWeightsAreTheStateBeforeTheFirstRound) {
  for (const bool nvme : {false, true}) {
    for (const int rounds : {0, 2}) {
      CapturedJob job(4, {0, 2}, nvme);
      const auto held = job.HoldAll();
      ASSERT_TRUE(held.ok()) << held.status();
      EXPECT_EQ(*held, 1u);
      for (int round = 0; round < rounds; ++round) job.Round();
      auto results = job.CaptureAll(1);
      job.ExpectCaptured(1, std::move(results));
      job.Round();
    }
  }
}

// Holds all extents at the round that is captured; there is nothing else.
class ImagesOfNow : public StateHolds {
 public:
  absl::Status ReadHeld(uint32_t extent, uint64_t, void* to) override {
    static_cast<float*>(to)[0] = static_cast<float>(extent);
    return absl::OkStatus();
  }
};

// A round at the same time meets one step of the work, not an extent's.
TEST(Capture, EachStepReadsOrHandsOnOneExtent) {
  DurableCluster cluster({900, 5, 2000}, /*world=*/1, {0}, /*seed=*/1);
  Capture capture{.layout = cluster.layout(),
                  .log = std::make_shared<ImagesOfNow>(),
                  .round = 3,
                  .kernels = &optim::Kernels(simd::Isa::kScalar)};
  const auto extents = static_cast<int>(capture.layout.extents().size());
  for (int extent = 0; extent < extents; ++extent) capture.held.versions[extent] = 3;
  int taken = 0;
  const auto steps = CaptureSteps::Create(capture, [&](uint32_t, const void*) {
    ++taken;
    return absl::OkStatus();
  });
  ASSERT_TRUE(steps.ok());
  EXPECT_GT(extents, 1);
  for (int extent = 0; extent < extents; ++extent) {
    EXPECT_TRUE((*steps)->Step().value());
    EXPECT_EQ(taken, extent) << "read";
    EXPECT_TRUE((*steps)->Step().value());
    EXPECT_EQ(taken, extent + 1);
  }
  EXPECT_FALSE((*steps)->Step().value());
}

// Keeps tasks until the test runs them, and counts those that come after a rest.
class KeptTasks : public Executor {
 public:
  bool Post(std::function<void()> task) override {
    tasks_.push_back(std::move(task));
    return true;
  }
  bool PostAfter(std::chrono::nanoseconds delay, std::function<void()> task) override {
    rests_ += delay.count() > 0;
    return Post(std::move(task));
  }
  void Shutdown() override { tasks_.clear(); }
  bool IsOwnThread() const override { return false; }
  bool IsOpen() override { return true; }

  // Runs one task after the other until none is left; how many came after a rest.
  int RunAll() {
    for (; !tasks_.empty(); tasks_.pop_front()) tasks_.front()();
    return rests_;
  }

 private:
  std::deque<std::function<void()>> tasks_;
  int rests_ = 0;
};

// As ImagesOfNow, with the rounds that a capture of round 3 asks for.
class RoundsOfNow : public ImagesOfNow {
 public:
  void ReadRounds(uint64_t until, std::function<void(absl::StatusOr<HeldRounds>)> done) override {
    HeldRounds rounds;
    rounds[until - 1].prepared = PreparedRecord{.round = until - 1};
    rounds[until - 1].decision = DecisionRecord{.round = until - 1};
    done(rounds);
  }
};

TEST(Capture, APacedRunPausesAfterEveryReadAndWrite) {
  DurableCluster cluster({900, 5, 2000}, /*world=*/1, {0}, /*seed=*/1);
  Capture capture{.layout = cluster.layout(),
                  .log = std::make_shared<RoundsOfNow>(),
                  .round = 3,
                  .kernels = &optim::Kernels(simd::Isa::kScalar)};
  const auto extents = static_cast<int>(capture.layout.extents().size());
  for (int extent = 0; extent < extents; ++extent) capture.held.versions[extent] = 3;
  const auto executor = std::make_shared<KeptTasks>();
  int taken = 0;
  absl::StatusOr<CapturedRound> ended = absl::UnknownError("not yet");
  const auto run = CaptureRun::Start(
      capture,
      [&](uint32_t, const void*) {
        ++taken;
        return absl::OkStatus();
      },
      executor, RealClock::Get(),
      [&](const absl::StatusOr<CapturedRound>& result) { ended = result; });
  EXPECT_EQ(executor->RunAll(), 2 * extents);
  EXPECT_EQ(taken, extents);
  EXPECT_TRUE(ended.ok()) << ended.status();
}

TEST(Capture, ARunWhoseExecutorHasEndedIsAbandoned) {
  DurableCluster cluster({900}, /*world=*/1, {0}, /*seed=*/1);
  Capture capture{.layout = cluster.layout(),
                  .log = std::make_shared<RoundsOfNow>(),
                  .round = 3,
                  .kernels = &optim::Kernels(simd::Isa::kScalar)};
  const auto executor = std::make_shared<KeptTasks>();
  int ended = 0;
  const auto run = CaptureRun::Start(
      capture, [](uint32_t, const void*) { return absl::OkStatus(); }, executor, RealClock::Get(),
      [&](const absl::StatusOr<CapturedRound>& result) {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
        ++ended;
      });
  executor->Shutdown();
  EXPECT_EQ(ended, 0);
  run->Abandon();
  run->Abandon();
  EXPECT_EQ(ended, 1);
}

TEST(CaptureGivenUp, ADamagedSlotIsNamed) {
  CapturedJob job(5, {0}, true);
  job.Round();
  job.Round();
  const auto held = job.HoldAll();
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string path = std::string(testing::kDirectory) + "/slots";
  for (uint64_t at = 100; job.cluster().Disk(0)->FlipBit(path, at, 2).ok(); at += kPageBytes) {
  }
  const auto end = job.Capture(0, *held).get();
  EXPECT_EQ(end.status().code(), absl::StatusCode::kDataLoss) << end.status();
  EXPECT_THAT(std::string(end.status().message()), HasSubstr("/slots is damaged"));
}

class RestingTest : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(RestingTest, TheStateOfAJobThatRestsIsThatOfItsNextRound) {
  const auto [rounds, nvme] = GetParam();
  const std::vector<uint32_t> servers = {0, 2};
  CapturedJob job(static_cast<uint32_t>(rounds), servers, nvme);
  for (int round = 0; round < rounds; ++round) job.Round();
  const auto next = static_cast<uint64_t>(rounds) + 1;
  std::vector<CapturedJob::Result> results;
  for (const uint32_t server : servers) {
    job.cluster().Shut(server);
    const auto state = job.AtRest(server);
    ASSERT_TRUE(state.ok()) << state.status();
    ASSERT_EQ((*state)->round(), next);
    results.push_back(CapturedJob::Done((*state)->Capture(next, job.taken().Take(), false)));
  }
  job.ExpectCaptured(next, std::move(results));
}

INSTANTIATE_TEST_SUITE_P(Rounds, RestingTest,
                         ::testing::Combine(::testing::Values(1, 2, 5, 9), ::testing::Bool()));

TEST(RestingStateTest, SaysWhichRoundItRestsAtAndEndsWhenItIsCancelled) {
  CapturedJob job(1, {0}, false);
  for (int round = 0; round < 3; ++round) job.Round();
  job.cluster().Shut(0);
  const auto state = job.AtRest(0);
  ASSERT_TRUE(state.ok()) << state.status();
  const absl::Status later = (*state)->Capture(5, job.taken().Take(), false).status();
  EXPECT_EQ(ReasonOf(later), Reason::kJobBusy);
  EXPECT_THAT(std::string(later.message()), HasSubstr("round 4, another one at round 5"));
  EXPECT_TRUE(absl::IsAborted((*state)->Capture(4, job.taken().Take(), true).status()));
  EXPECT_TRUE((*state)->Capture(4, job.taken().Take(), false).ok());
}

TEST(RestingStateTest, AJobThatHasNotFinishedARoundHasNone) {
  CapturedJob job(1, {0}, false);
  job.cluster().Shut(0);
  const absl::Status status = job.AtRest(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has not finished a round; take"));
}

}  // namespace
}  // namespace ballast::server
