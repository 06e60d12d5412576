// Restarted servers: engines of one durable job whose disks lose power at any moment, driven by
// trainers that do what the client does, compared bit for bit with the plain loop.
#include "server/round/recovery.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <set>

#include "common/io/memory_disk.h"
#include "server/cluster/epoch_change.h"
#include "server/round/round_engine.h"
#include "tests/server/round/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server {
namespace {

using testing::IncarnationOf;
using testing::kChunk;
using testing::LayoutOf;
using testing::MakeBegin;
using testing::MakeFrame;
using testing::MakePlan;
using testing::Random;
using testing::RecordingSink;
using testing::Reference;

constexpr char kDirectory[] = "/jobs/1";

// Servers with a disk each. What a server sends to one that is down is sent again when that is
// back, as PeerClient does.
class DurableCluster : public VoteSink {
 public:
  // `nvme_extents`: of EngineConfig, asked for anew at every start of a server.
  DurableCluster(
      std::vector<int64_t> sizes, uint32_t world, std::vector<uint32_t> servers, uint32_t seed,
      std::function<uint32_t()> nvme_extents = [] { return 0; })
      : plan_(MakePlan(sizes, world, std::move(servers))),
        rng_(seed),
        nvme_extents_(std::move(nvme_extents)) {
    plan_.spec.durability = Durability::kPower;
    plan_.spec.max_consecutive_skips = 1;
    layout_ = LayoutOf(plan_);
    for (const uint32_t id : plan_.servers) {
      nodes_[id].disk = std::make_unique<MemoryDisk>();
      nodes_[id].manifest = plan_;
      Start(id, /*fresh=*/true);
    }
  }
  ~DurableCluster() override {
    for (auto& [id, node] : nodes_) Stop(&node);
  }

  void SendVote(uint64_t, uint32_t epoch, uint64_t round, uint32_t to, const Vote& vote) override {
    {
      MutexLock lock(&mu_);
      votes_[{vote.server, to}] = {epoch, round, vote};
    }
    Deliver(epoch, round, to, vote);
  }
  void DropVotes(uint64_t) override {}

  // Power loss and restart. Whoever held the old engine finds its files closed.
  void Restart(uint32_t id, const MemoryDisk::Random& random) {
    Node& node = nodes_[id];
    Stop(&node);
    node.disk->Crash(random);
    Start(id, /*fresh=*/false);
    std::map<std::pair<uint32_t, uint32_t>, SentVote> votes;
    {
      MutexLock lock(&mu_);
      votes = votes_;
    }
    for (const auto& [from_to, sent] : votes) {
      if (from_to.second == id) Deliver(sent.epoch, sent.round, id, sent.vote);
    }
  }

  // The job's next epoch, in which `slot` is held by another process, as the home brings it about.
  // `between` runs after each step.
  void ChangeEpoch(
      uint32_t slot, const std::function<void()>& between = [] {}) {
    EpochChange change(plan_);
    for (const uint32_t id : plan_.servers) {
      std::promise<absl::StatusOr<SealAnswer>> sealed;
      Engine(id)->Seal(plan_.epoch.epoch, Save(id),
                       [&](const absl::StatusOr<SealAnswer>& answer) { sealed.set_value(answer); });
      const absl::StatusOr<SealAnswer> answer = sealed.get_future().get();
      ASSERT_TRUE(answer.ok()) << answer.status();
      change.OnSealed(id, *answer);
      between();
    }
    const auto next =
        change.NextPlan({.newcomers = {{slot, plan_.epoch.members[slot].incarnation + 100}}});
    ASSERT_TRUE(next.ok()) << next.status();
    plan_ = *next;
    for (const uint32_t id : plan_.servers) {
      std::promise<absl::Status> adopted;
      Engine(id)->Adopt(
          plan_, 64, [this, id] { return Save(id)(plan_); },
          [&](const absl::Status& status) { adopted.set_value(status); });
      const absl::Status status = adopted.get_future().get();
      ASSERT_TRUE(status.ok()) << status;
      between();
    }
  }

  std::shared_ptr<RoundEngine> Engine(uint32_t id) {
    MutexLock lock(&mu_);
    return engines_[id];
  }
  const JobPlan& plan() const { return plan_; }
  const Layout& layout() const { return layout_; }
  std::mt19937& rng() { return rng_; }
  MemoryDisk* Disk(uint32_t id) { return nodes_[id].disk.get(); }
  // What the first server to fail said of its disk; waits for it.
  absl::Status Failure() {
    MutexLock lock(&mu_);
    while (failures_.empty()) failed_.Wait(&mu_);
    return failures_.front();
  }

 private:
  struct Node {
    std::unique_ptr<MemoryDisk> disk;
    JobPlan manifest;  // as the server knows it; what is saved survives
    std::unique_ptr<Executor> executor;
    std::unique_ptr<WorkerPool> workers;
  };
  struct SentVote {
    uint32_t epoch = 0;
    uint64_t round = 0;
    Vote vote;
  };

  void Deliver(uint32_t epoch, uint64_t round, uint32_t to, const Vote& vote) {
    const std::shared_ptr<RoundEngine> engine = Engine(to);
    if (engine == nullptr) return;
    engine->PeerVote(epoch, round, vote, [=, this](const VoteAnswer& own) {
      const std::shared_ptr<RoundEngine> asker = Engine(vote.server);
      if (asker == nullptr) return;
      if (!own.ok()) return asker->VoteRefused(round, own.status());
      if (own->has_value()) asker->PeerVote(epoch, round, **own, [](const VoteAnswer&) {});
    });
  }

  std::function<absl::Status(const JobPlan&)> Save(uint32_t id) {
    return [this, id](const JobPlan& plan) {
      nodes_[id].manifest = plan;
      return absl::OkStatus();
    };
  }

  void Start(uint32_t id, bool fresh) {
    Node& node = nodes_[id];
    node.executor = std::make_unique<Executor>("test", 2);
    node.workers = std::make_unique<WorkerPool>(1);
    EngineConfig config{.self = id, .chunk_bytes = kChunk, .checkpoint_rounds = 2};
    config.open_timeout = std::chrono::hours(1);
    config.nvme_extents = nvme_extents_();
    EngineDeps deps{.executor = node.executor.get(),
                    .workers = node.workers.get(),
                    .clock = &clock_,
                    .isa = simd::DetectIsa(),
                    .votes = this};
    // Of an engine whose disk is gone.
    deps.storage_failed = [this](const absl::Status& status) {
      MutexLock lock(&mu_);
      failures_.push_back(status);
      failed_.NotifyAll();
    };
    const JobPlan& plan = node.manifest;
    const StorageOptions options = StorageOptionsOf(plan, layout_, id, config.checkpoint_rounds);
    auto storage = fresh ? JobStorage::Create(node.disk.get(), kDirectory, options)
                         : JobStorage::Open(node.disk.get(), kDirectory, options);
    ASSERT_TRUE(storage.ok()) << storage.status();
    for (const char* parent : {"/", "/jobs"}) {
      ASSERT_TRUE(node.disk->SyncDirectory(parent).ok());  // As JobStore does.
    }
    auto engine = RoundEngine::Create(plan, config, deps, *std::move(storage));
    ASSERT_TRUE(engine.ok()) << engine.status();
    {
      MutexLock lock(&mu_);
      engines_[id] = *engine;
    }
    (*engine)->Start();
  }

  void Stop(Node* node) {
    if (node->executor == nullptr) return;
    std::shared_ptr<RoundEngine> engine;
    {
      MutexLock lock(&mu_);
      for (auto& [id, known] : engines_) {
        if (nodes_[id].executor == node->executor) engine.swap(known);
      }
    }
    engine.reset();
    node->executor->Shutdown();
    node->workers.reset();
  }

  JobPlan plan_;
  Layout layout_ = LayoutOf(MakePlan({1}, 1, {0}));
  RealClock clock_;
  std::mt19937 rng_;
  const std::function<uint32_t()> nvme_extents_;
  std::map<uint32_t, Node> nodes_;
  Mutex mu_;
  CondVar failed_;
  std::vector<absl::Status> failures_;
  std::map<uint32_t, std::shared_ptr<RoundEngine>> engines_;
  std::map<std::pair<uint32_t, uint32_t>, SentVote> votes_;
};

// One slot as the client plays it: it keeps what it pushed until it has seen the round's end from
// every server, and says everything again to a server that was restarted.
class Trainer {
 public:
  Trainer(DurableCluster* cluster, uint32_t slot, std::vector<std::vector<float>> init)
      : cluster_(cluster), slot_(slot), weights_(std::move(init)) {
    for (const uint32_t id : cluster_->plan().servers) Attach(id);
  }

  // Opens (again) the stream to a server, and sends what it lacks.
  void Attach(uint32_t id) {
    auto sink = std::make_shared<RecordingSink>(cluster_->layout().extents().size());
    sinks_[id] = sink;
    Mutex mu;
    CondVar cv;
    absl::StatusOr<SlotWelcome> answer = absl::UnknownError("no answer");
    bool done = false;
    cluster_->Engine(id)->AttachSlot(
        {.slot = slot_,
         .incarnation = cluster_->plan().epoch.members[slot_].incarnation,
         .epoch = cluster_->plan().epoch.epoch,
         .round = round_},
        sink, [&](const absl::StatusOr<SlotWelcome>& welcome) {
          MutexLock lock(&mu);
          answer = welcome;
          done = true;
          cv.NotifyAll();
        });
    {
      MutexLock lock(&mu);
      while (!done) cv.Wait(&mu);
    }
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_TRUE(answer->round == round_ || answer->round == round_ + 1) << answer->round;
    if (answer->round != round_) return;
    if (slot_ == 0) {
      const std::set<uint32_t> missing(answer->init_missing.begin(), answer->init_missing.end());
      for (const uint32_t extent : missing) SendExtent(id, extent, FrameKind::kInit, weights_);
    }
    complete_[id] = {answer->complete.begin(), answer->complete.end()};
    if (open_) Begin(id);
    for (const uint32_t extent : pushed_) Push(id, extent);
  }

  void BeginRound(const std::vector<std::vector<float>>& grads) {
    BeginWith(MakeBegin(round_), grads);
  }
  // A round that makes `weights` the job's: slot 0 pushes them, the others none.
  void BeginUpload(const std::vector<std::vector<float>>& weights) {
    RoundBegin begin{.round = round_, .layout_version = 1, .upload = true};
    for (const auto& tensor : weights) {
      begin.weight_crc32c.push_back(Crc32c(tensor.data(), tensor.size() * sizeof(float)));
    }
    BeginWith(begin, weights);
  }
  void BeginWith(const RoundBegin& begin, const std::vector<std::vector<float>>& values) {
    begin_ = begin;
    grads_ = values;
    open_ = true;
    pushed_.clear();
    for (const uint32_t id : cluster_->plan().servers) {
      complete_[id].clear();
      Begin(id);
    }
  }
  void PushExtent(uint32_t extent) {
    pushed_.push_back(extent);
    Push(cluster_->plan().owner[extent], extent);
  }
  // Whether `id` has ended the open round for this slot.
  bool Ended(uint32_t id) { return sinks_[id]->Ended(round_); }

  // What every server said of the round that ended last.
  std::vector<RoundResult> results() {
    std::vector<RoundResult> out;
    for (auto& [id, sink] : sinks_) {
      MutexLock lock(&sink->mu_);
      out.push_back(sink->result_);
    }
    return out;
  }

  // Waits for every server, then takes the weights.
  void EndRound() {
    for (auto& [id, sink] : sinks_) {
      const absl::Status status = sink->Wait(round_);
      ASSERT_TRUE(status.ok()) << status;
    }
    for (uint32_t e = 0; e < cluster_->layout().extents().size(); ++e) {
      RecordingSink* sink = sinks_[cluster_->plan().owner[e]].get();
      MutexLock lock(&sink->mu_);
      const Extent& extent = cluster_->layout().extents()[e];
      for (uint32_t i = 0; i < extent.run_count && !sink->weights_[e].empty(); ++i) {
        const Run& run = cluster_->layout().runs()[extent.first_run + i];
        std::memcpy(weights_[run.tensor].data() + run.tensor_offset,
                    sink->weights_[e].data() + run.extent_offset * 4, run.elements * 4);
      }
    }
    ++round_;
    open_ = false;
    pushed_.clear();
  }
  // Masters and moments of the open round, from all servers.
  std::vector<std::vector<std::vector<float>>> FetchArrays() {
    std::vector<std::vector<std::vector<float>>> arrays(3, weights_);
    for (auto& [id, sink] : sinks_) {
      {
        MutexLock lock(&sink->mu_);
        sink->state_.clear();
      }
      cluster_->Engine(id)->FetchState(slot_, round_, false, {0, 1, 2});
    }
    const Layout& layout = cluster_->layout();
    for (uint32_t e = 0; e < layout.extents().size(); ++e) {
      const uint32_t owner = cluster_->plan().owner[e];
      for (int array = 0; array < 3; ++array) {
        const std::vector<char> bytes = Arrived(owner, array, e);
        const Extent& extent = layout.extents()[e];
        for (uint32_t i = 0; i < extent.run_count; ++i) {
          const Run& run = layout.runs()[extent.first_run + i];
          std::memcpy(arrays[array][run.tensor].data() + run.tensor_offset,
                      bytes.data() + run.extent_offset * 4, run.elements * 4);
        }
      }
    }
    return arrays;
  }
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  uint64_t round() const { return round_; }

 private:
  // An array of an extent, once all of it is there.
  std::vector<char> Arrived(uint32_t id, int array, uint32_t extent) {
    const size_t bytes = size_t{cluster_->layout().extents()[extent].elements} * 4;
    for (;;) {
      {
        MutexLock lock(&sinks_[id]->mu_);
        const std::vector<char>& state = sinks_[id]->state_[{array, extent}];
        if (state.size() == bytes) return state;
      }
      std::promise<void> turn;  // of the job's strand
      cluster_->Engine(id)->Snapshot([&](const JobSnapshot&) { turn.set_value(); });
      turn.get_future().get();
    }
  }
  void Begin(uint32_t id) { cluster_->Engine(id)->Begin(slot_, begin_); }
  void Push(uint32_t id, uint32_t extent) {
    if (begin_.upload && slot_ != 0) return;
    if (cluster_->plan().owner[extent] != id || complete_[id].count(extent) != 0) return;
    SendExtent(id, extent, FrameKind::kGradient, grads_);
  }
  void SendExtent(uint32_t id, uint32_t extent, FrameKind kind,
                  const std::vector<std::vector<float>>& values) {
    const Layout& layout = cluster_->layout();
    const Extent& e = layout.extents()[extent];
    std::vector<float> flat(e.elements);
    for (uint32_t i = 0; i < e.run_count; ++i) {
      const Run& run = layout.runs()[e.first_run + i];
      std::copy_n(values[run.tensor].begin() + static_cast<int64_t>(run.tensor_offset),
                  run.elements, flat.begin() + run.extent_offset);
    }
    for (const ChunkRange& range : ChunkRanges(layout, extent, kChunk, {})) {
      const char* data = reinterpret_cast<const char*>(flat.data()) + range.offset_bytes;
      FrameInfo info = MakeFrame(cluster_->plan(), kind, slot_, round_, extent, range);
      info.epoch = cluster_->plan().epoch.epoch;
      info.incarnation = cluster_->plan().epoch.members[slot_].incarnation;
      info.crc32c = Crc32c(data, range.length_bytes);
      cluster_->Engine(id)->Frame(info, Payload::FromString(std::string(data, range.length_bytes)));
    }
  }

  DurableCluster* const cluster_;
  const uint32_t slot_;
  uint64_t round_ = 1;
  bool open_ = false;
  std::vector<std::vector<float>> weights_;
  RoundBegin begin_;
  std::vector<std::vector<float>> grads_;  // or weights, in an upload
  std::vector<uint32_t> pushed_;
  std::map<uint32_t, std::set<uint32_t>> complete_;
  std::map<uint32_t, std::shared_ptr<RecordingSink>> sinks_;
};

struct Shape {
  std::vector<uint32_t> servers;
  uint32_t world;
};

class PowerLoss : public ::testing::TestWithParam<int> {};

// Rounds 3, 4 and 6 are not finite, and one of two in a row is halted.
bool Poisoned(uint64_t round) { return round == 3 || round == 4 || round == 6; }

// Rounds 2 and 7 replace the weights; what is counted of skipped rounds stays.
bool Uploaded(uint64_t round) { return round == 2 || round == 7; }

// Flat element 301 + 40: extent 2, element 85; the last slot's, and a later one of slot 0.
void Poison(std::vector<std::vector<std::vector<float>>>* grads) {
  grads->back()[2][40] = NAN;
  grads->front()[3][500] = INFINITY;
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
    } else {
      trainers[slot]->BeginRound(grads[slot]);
    }
  }
}

void RunReference(uint64_t round, const Grads& grads, Reference* reference) {
  if (Uploaded(round)) {
    reference->p = grads[0];
  } else {
    reference->Step(grads, 1.0f / static_cast<float>(grads.size()), MakeBegin(round).hyper[0],
                    std::vector<bool>(reference->p.size(), !Poisoned(round)));
  }
}

// Random servers lose power, and seats change hands, between any two pushes and while the round is
// decided.
void RunThroughPowerLoss(uint32_t seed, const std::vector<int64_t>& sizes,
                         const std::function<uint32_t()>& nvme_extents) {
  std::mt19937 rng(seed);
  const std::vector<Shape> shapes = {{{0}, 1}, {{0}, 2}, {{1, 4}, 1}, {{1, 4}, 2}, {{1, 2, 7}, 2}};
  const Shape& shape = shapes[seed % shapes.size()];
  DurableCluster cluster(sizes, shape.world, shape.servers, seed, nvme_extents);
  const auto init = Random(sizes, seed);
  Reference reference(init);
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (uint32_t s = 0; s < shape.world; ++s) {
    trainers.push_back(std::make_unique<Trainer>(&cluster, s, init));
  }
  const auto maybe_restart = [&](uint32_t one_in) {
    if (rng() % one_in != 0) return;
    const uint32_t id = shape.servers[rng() % shape.servers.size()];
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
    cluster.ChangeEpoch(static_cast<uint32_t>(rng() % shape.world), [&] {
      if (steps-- == 0) restart();
    });
    for (const uint32_t each : shape.servers) {
      for (const auto& trainer : trainers) trainer->Attach(each);
    }
  };
  for (uint64_t round = 1; round <= 8; ++round) {
    std::vector<std::vector<std::vector<float>>> grads;
    for (uint32_t s = 0; s < shape.world; ++s) {
      grads.push_back(Random(sizes, static_cast<uint32_t>(seed * 1000 + round * 10 + s)));
    }
    if (Poisoned(round)) Poison(&grads);
    BeginEverywhere(round, grads, trainers);
    std::vector<std::pair<uint32_t, uint32_t>> pushes;
    for (uint32_t s = 0; s < shape.world; ++s) {
      for (uint32_t e = 0; e < cluster.layout().extents().size(); ++e) pushes.push_back({s, e});
    }
    std::shuffle(pushes.begin(), pushes.end(), rng);
    for (const auto& [slot, extent] : pushes) {
      trainers[slot]->PushExtent(extent);
      maybe_restart(20);
    }
    maybe_restart(2);
    maybe_restart(4);
    for (const auto& trainer : trainers) {
      trainer->EndRound();
      ExpectResults(round, shape.world, trainer->results());
    }
    RunReference(round, grads, &reference);
    for (const auto& trainer : trainers) {
      for (size_t t = 0; t < sizes.size(); ++t) {
        ASSERT_EQ(std::memcmp(trainer->weights()[t].data(), reference.p[t].data(),
                              reference.p[t].size() * 4),
                  0)
            << "seed " << seed << " round " << round << " tensor " << t;
      }
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

// A trainer that crashes at the same batch each time: the dead attempts at one round are many times
// what the log holds.
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
    for (size_t t = 0; t < sizes.size(); ++t) {
      const std::vector<float>& got = trainers[0]->weights()[t];
      ASSERT_EQ(std::memcmp(got.data(), reference.p[t].data(), got.size() * 4), 0)
          << "round " << round << " tensor " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PowerLoss, ::testing::Range(0, 60));

}  // namespace
}  // namespace ballast::server
