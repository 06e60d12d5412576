// The engines of one durable job, whose disks may lose power at any moment, and trainers
// that act as the client does. Comes from: the tests of this folder.
// Thread safety: DurableCluster as its methods say; the rest thread-compatible.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/io/memory_disk.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/engine/round_engine.h"
#include "server/home/epoch_change.h"
#include "server/recovery/recovery.h"
#include "tests/server/engine/engine_cluster.h"
#include "tests/server/round/plans.h"

namespace ballast::server::testing {

inline constexpr char kDirectory[] = "/jobs/1";

// Servers with a disk each. A message to a server that is down is sent again when it is back, as
// PeerClient does.
class DurableCluster : public VoteSink {
 public:
  // `nvme_extents`: of EngineConfig, asked for anew at every start of a server. `change` makes
  // another job of it.
  DurableCluster(
      std::vector<int64_t> sizes, uint32_t world, std::vector<uint32_t> servers, uint32_t seed,
      std::function<uint32_t()> nvme_extents = [] { return 0; },
      const std::function<void(JobSpec*)>& change = [](JobSpec*) {})
      : plan_(MakePlan(sizes, world, std::move(servers))),
        rng_(seed),
        nvme_extents_(std::move(nvme_extents)) {
    plan_.spec.durability = Durability::kPower;
    plan_.spec.max_consecutive_skips = 1;
    change(&plan_.spec);
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

  // The process of a server ends in good order: its writes end, and its files rest.
  void Shut(uint32_t id) {
    Engine(id)->Fail(absl::UnavailableError("the server is shut down"));
    std::promise<void> ended;
    Engine(id)->Status([&](const JobStatus&) { ended.set_value(); });
    ended.get_future().get();
    Stop(&nodes_[id]);
    nodes_[id].executor.reset();
  }

  // The job's next epoch, in which `slot` is held by another process, as the home brings it about.
  // `between` runs after each step.
  void ChangeEpoch(
      uint32_t slot, const std::function<void()>& between = [] {}) {
    EpochChange change(plan_);
    for (const uint32_t id : plan_.servers) {
      std::promise<absl::StatusOr<SealAnswer>> sealed;
      Engine(id)->changes().Seal(
          plan_.epoch.epoch, Save(id),
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
      Engine(id)->changes().Adopt({plan_, 64, [this, id] { return Save(id)(plan_); },
                                   [&](const absl::Status& status) { adopted.set_value(status); }});
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
  // Of the job at all servers.
  const JobMetrics& metrics() { return *metrics_.Job(plan_.name()); }
  ServerMetrics* server_metrics() { return &metrics_; }
  // The disk error of the first server to fail; waits for it.
  absl::Status Failure() {
    MutexLock lock(&mu_);
    while (failures_.empty()) failed_.Wait(&mu_);
    return failures_.front();
  }

 private:
  struct Node {
    std::unique_ptr<MemoryDisk> disk;
    JobPlan manifest;  // as the server knows it; the saved ones survive
    std::shared_ptr<Executor> executor;
    std::unique_ptr<WorkerPool> workers;
  };
  // An engine with the executor that it posts to until its last thread has ended. A vote under way
  // may hold the engine longer than its server does.
  struct Running {
    std::shared_ptr<Executor> executor;
    std::shared_ptr<RoundEngine> engine;  // last: it ends first
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
    node.executor = std::make_shared<ThreadExecutor>("test", 2);
    node.workers = std::make_unique<ThreadWorkerPool>(1);
    EngineConfig config{.self = id, .chunk_bytes = kChunk, .checkpoint_rounds = 2};
    config.open_timeout = std::chrono::hours(1);
    config.nvme_extents = nvme_extents_();
    EngineDeps deps{.executor = node.executor.get(),
                    .workers = node.workers.get(),
                    .clock = &clock_,
                    .isa = simd::DetectIsa(),
                    .votes = this,
                    .metrics = &metrics_};
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
    const auto running = std::make_shared<Running>(Running{node.executor, *engine});
    {
      MutexLock lock(&mu_);
      engines_[id] = std::shared_ptr<RoundEngine>(running, running->engine.get());
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
  ServerMetrics metrics_{BuildInfo()};
  std::mt19937 rng_;
  const std::function<uint32_t()> nvme_extents_;
  std::map<uint32_t, Node> nodes_;
  Mutex mu_;
  CondVar failed_;
  std::vector<absl::Status> failures_;
  std::map<uint32_t, std::shared_ptr<RoundEngine>> engines_;
  std::map<std::pair<uint32_t, uint32_t>, SentVote> votes_;
};

// One slot as the client plays it: it keeps its gradients until it has seen the round's end from
// every server, and sends everything again to a server that was restarted.
class Trainer {
 public:
  Trainer(DurableCluster* cluster, uint32_t slot, std::vector<std::vector<float>> init)
      : cluster_(cluster), slot_(slot), weights_(std::move(init)) {
    for (const uint32_t id : cluster_->plan().servers) Attach(id);
  }

  // Opens (again) the stream to a server, and sends the frames that it lacks.
  void Attach(uint32_t id) {
    auto sink = std::make_shared<RecordingSink>(cluster_->layout().extents().size());
    sinks_[id] = sink;
    Mutex mu;
    CondVar cv;
    absl::StatusOr<SlotWelcome> answer = absl::UnknownError("no answer");
    bool done = false;
    cluster_->Engine(id)->trainers().AttachSlot(
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
    BeginWith(BeginOf(cluster_->plan(), round_), grads);
  }
  // A round that makes `values` the job's weights, or a plane of its state: slot 0 pushes them, the
  // others none.
  void BeginUpload(const std::vector<std::vector<float>>& values,
                   UploadPlane plane = UploadPlane::kWeights,
                   std::optional<StepCounts> steps = std::nullopt) {
    RoundBegin begin{.round = round_, .layout_version = 1, .upload = plane};
    begin.steps = std::move(steps);
    for (const auto& tensor : values) {
      begin.weight_crc32c.push_back(Crc32c(tensor.data(), tensor.size() * sizeof(float)));
    }
    BeginWith(begin, values);
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

  // The results of the last round, one per server.
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
      sink->ForgetState();
      cluster_->Engine(id)->trainers().FetchState({slot_, round_, false, {0, 1, 2}});
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
  // An array of an extent, once it is complete.
  std::vector<char> Arrived(uint32_t id, int array, uint32_t extent) {
    return sinks_[id]->AwaitState(array, extent, cluster_->layout().extents()[extent].elements);
  }
  void Begin(uint32_t id) { cluster_->Engine(id)->Begin(slot_, begin_); }
  void Push(uint32_t id, uint32_t extent) {
    if (IsUpload(begin_.upload) && slot_ != 0) return;
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
      FrameHeader header = MakeFrame(cluster_->plan(), kind, slot_, round_, extent, range);
      header.epoch = cluster_->plan().epoch.epoch;
      header.incarnation = cluster_->plan().epoch.members[slot_].incarnation;
      header.crc32c = Crc32c(data, range.length_bytes, IdentityCrc(header));
      cluster_->Engine(id)->Frame(header,
                                  Payload::FromString(std::string(data, range.length_bytes)));
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

}  // namespace ballast::server::testing
