#include "tests/fault/workload.h"

#include <algorithm>
#include <future>

#include "common/base/check.h"
#include "common/bytes/crc32c.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"

namespace ballast::fault {
namespace {

using server::JobPlan;
using server::RoundEngine;
using server::SlotWelcome;
using server::testing::IncarnationOf;
using server::testing::kChunk;
using server::testing::MakeBegin;
using server::testing::Random;
using server::testing::RecordingSink;

const std::vector<int64_t> kSizes = {900, 1, 130};
constexpr uint32_t kWorld = 2;
constexpr uint32_t kInitSeed = 1000;
constexpr uint64_t kLogSecret = 0x5ec7e7;

}  // namespace

JobPlan WorkloadPlan() {
  JobPlan plan = server::testing::MakePlan(kSizes, kWorld, {0, 1});
  plan.spec.durability = Durability::kPower;
  return plan;
}

std::unique_ptr<server::JobStore> WorkloadStore(FileSystem* disk, server::MetaStore* meta,
                                                uint32_t self) {
  return std::make_unique<server::JobStore>(disk, server::testing::kJobsRoot, meta, self,
                                            kCheckpointRounds, server::MakePlanCodec(),
                                            [] { return kLogSecret; });
}

Workload::Workload()
    : plan_(WorkloadPlan()),
      layout_(server::testing::LayoutOf(plan_)),
      reference_(Random(kSizes, kInitSeed)) {
  versions_.push_back({reference_.p, reference_.m, reference_.v, reference_.step});
  for (uint32_t id = 0; id < kServers; ++id) {
    nodes_[id].disk = std::make_unique<MemoryDisk>();
    BALLAST_CHECK(nodes_[id].disk->MakeDirectory("/data").ok());
    auto meta = nodes_[id].meta_folder.Open();
    BALLAST_CHECK(meta.ok());
    const auto store = WorkloadStore(nodes_[id].disk.get(), meta->get(), id);
    BALLAST_CHECK(store->Load().ok());
    BALLAST_CHECK(store->Create(plan_).ok());
  }
}

Workload::~Workload() { Stop(); }

// As PeerClient: a server that lost its last decision learns of it from the answer to its vote.
void Workload::SendVote(uint64_t, uint32_t epoch, uint64_t round, uint32_t to, const Vote& vote) {
  const std::shared_ptr<RoundEngine> engine = Engine(to);
  if (engine == nullptr) return;
  engine->PeerVote(epoch, round, vote, [=, this](const server::VoteAnswer& own) {
    const std::shared_ptr<RoundEngine> asker = Engine(vote.server);
    if (asker == nullptr) return;
    if (!own.ok()) return asker->VoteRefused(round, own.status());
    if (own->has_value()) asker->PeerVote(epoch, round, **own, [](const server::VoteAnswer&) {});
  });
}

std::shared_ptr<RoundEngine> Workload::Engine(uint32_t id) {
  MutexLock lock(&mu_);
  return nodes_[id].engine;
}

void Workload::Start(uint32_t id) {
  Node& node = nodes_[id];
  node.executor = std::make_unique<ThreadExecutor>("test", 1);
  node.workers = std::make_unique<ThreadWorkerPool>(1);
  server::EngineConfig config{.self = id, .chunk_bytes = kChunk};
  config.checkpoint_rounds = kCheckpointRounds;
  config.open_timeout = std::chrono::hours(1);
  const server::EngineDeps deps{.executor = node.executor.get(),
                                .workers = node.workers.get(),
                                .clock = &clock_,
                                .isa = simd::DetectIsa(),
                                .votes = this};
  auto meta = node.meta_folder.Open();
  BALLAST_CHECK(meta.ok());
  node.meta = *std::move(meta);
  const auto store = WorkloadStore(node.disk.get(), node.meta.get(), id);
  BALLAST_CHECK(store->Save(plan_).ok());  // As a starting server does.
  auto storage = store->Open(plan_);
  BALLAST_CHECK(storage.ok());
  auto engine = RoundEngine::Create(plan_, config, deps, *std::move(storage));
  BALLAST_CHECK(engine.ok());
  MutexLock lock(&mu_);
  node.engine = *engine;
}

void Workload::Stop() {
  for (Node& node : nodes_) {
    if (node.executor == nullptr) continue;
    {
      std::shared_ptr<RoundEngine> engine;
      MutexLock lock(&mu_);
      engine.swap(node.engine);
    }
    node.executor->Shutdown();
    node.workers.reset();
    node.executor.reset();
    node.sinks.clear();
  }
}

std::vector<std::vector<std::vector<float>>> Workload::Gradients(uint64_t round) const {
  std::vector<std::vector<std::vector<float>>> grads;
  for (uint32_t slot = 0; slot < kWorld; ++slot) {
    grads.push_back(Random(kSizes, static_cast<uint32_t>(round * kWorld + slot)));
    for (size_t t = 0; t < kSizes.size(); ++t) {
      for (size_t i = 0; i < grads[slot][t].size(); ++i) {
        grads[slot][t][i] += 0.1f * reference_.p[t][i];
      }
    }
  }
  return grads;
}

std::vector<std::vector<float>> Workload::OpenSum() const {
  const auto grads = Gradients(round_);
  std::vector<std::vector<float>> sum = grads[0];
  for (size_t t = 0; t < sum.size(); ++t) {
    for (size_t i = 0; i < sum[t].size(); ++i) sum[t][i] = sum[t][i] + grads[1][t][i];
  }
  return sum;
}

void Workload::Begin(uint64_t round) {
  for (Node& node : nodes_) {
    for (uint32_t slot = 0; slot < kWorld; ++slot) node.engine->Begin(slot, MakeBegin(round));
  }
}

void Workload::Push(FrameKind kind, uint64_t round, uint32_t slot, uint32_t extent,
                    const std::vector<std::vector<float>>& values) {
  const Extent& e = layout_.extents()[extent];
  std::vector<float> flat(e.elements);
  for (uint32_t i = 0; i < e.run_count; ++i) {
    const Run& run = layout_.runs()[e.first_run + i];
    std::copy_n(values[run.tensor].begin() + static_cast<ptrdiff_t>(run.tensor_offset),
                run.elements, flat.begin() + run.extent_offset);
  }
  for (const ChunkRange& range : ChunkRanges(layout_, extent, kChunk, {})) {
    const char* const data = reinterpret_cast<const char*>(flat.data()) + range.offset_bytes;
    FrameHeader header = server::testing::MakeFrame(plan_, kind, slot, round, extent, range);
    header.crc32c = Crc32c(data, range.length_bytes, IdentityCrc(header));
    nodes_[plan_.owner[extent]].engine->Frame(
        header, Payload::FromString(std::string(data, range.length_bytes)));
  }
}

void Workload::StartAll() {
  for (uint32_t id = 0; id < kServers; ++id) Start(id);
  for (Node& node : nodes_) {
    node.engine->Start();
    for (uint32_t slot = 0; slot < kWorld; ++slot) {
      node.sinks.push_back(std::make_shared<RecordingSink>(layout_.extents().size()));
      node.engine->trainers().AttachSlot(
          {.slot = slot, .incarnation = IncarnationOf(slot), .epoch = 1}, node.sinks.back(),
          [](const absl::StatusOr<SlotWelcome>& welcome) { BALLAST_CHECK(welcome.ok()); });
    }
  }
  for (Node& node : nodes_) AwaitRound(node.engine.get());
}

void Workload::RunRound() {
  Begin(round_);
  const auto grads = Gradients(round_);
  for (uint32_t slot = 0; slot < kWorld; ++slot) {
    for (const uint32_t extent : layout_.push_order()) {
      Push(FrameKind::kGradient, round_, slot, extent, grads[slot]);
    }
  }
  for (Node& node : nodes_) {
    for (const auto& sink : node.sinks) BALLAST_CHECK(sink->Wait(round_).ok());
  }
  reference_.Step(grads, 1.0f / kWorld, MakeBegin(round_).hyper[0], {true, true, true});
  versions_.push_back({reference_.p, reference_.m, reference_.v, reference_.step});
}

Moment Workload::RunTo(uint64_t last, uint32_t open_extents) {
  StartAll();
  const auto& push_order = layout_.push_order();
  if (round_ == 1) {
    for (const uint32_t extent : push_order) Push(FrameKind::kInit, 1, 0, extent, reference_.p);
  }
  for (; round_ <= last; ++round_) RunRound();
  Begin(round_);
  const auto grads = Gradients(round_);
  for (uint32_t i = 0; i < open_extents; ++i) {
    for (uint32_t slot = 0; slot < kWorld; ++slot) {
      Push(FrameKind::kGradient, round_, slot, push_order[i], grads[slot]);
    }
  }
  Moment moment{.committed = last};
  Leave(&moment);
  return moment;
}

// One whose last decision did not come to its disk takes it from the other first.
void Workload::AwaitRound(RoundEngine* engine) const {
  uint64_t round = 0;
  while (round != round_) {
    std::promise<uint64_t> now;
    engine->Status([&](const server::JobStatus& job) { now.set_value(job.round); });
    round = now.get_future().get();
  }
}

void Workload::Leave(Moment* moment) {
  Stop();
  for (uint32_t id = 0; id < kServers; ++id) {
    Node& node = nodes_[id];
    moment->disks[id] = ImageOf(node.disk.get());
    node.meta_folder.CopyTo(&moment->disks[id]);  // Still open, as a killed server leaves it.
    const auto records = node.meta->List({});
    BALLAST_CHECK(records.ok() && records->next.empty());
    moment->records[id] = records->entries;
    node.meta.reset();
  }
}

}  // namespace ballast::fault
