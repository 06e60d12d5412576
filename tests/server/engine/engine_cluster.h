// Engines of one job in one process, with sinks that remember, and the plain loop whose bits they
// must produce. Votes are passed by hand.
// Comes from: tests of the round room. Goes to: RoundEngine.
// Thread safety: one test's thread; sinks are called on the engines' strands.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "common/bytes/crc32c.h"
#include "common/threads/thread_executor.h"
#include "common/threads/thread_worker_pool.h"
#include "server/engine/round_engine.h"
#include "server/optim/scalars.h"
#include "tests/server/round/plans.h"

namespace ballast::server::testing {

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
    cv_.NotifyAll();
  }
  void OnDone(const RoundDone& done) override { Finish(done.round, absl::OkStatus()); }
  void OnRefused(const FrameRefused& refused) override {
    MutexLock lock(&mu_);
    refusals_.push_back(refused);
  }
  void OnState(const StateInfo&) override {}
  void OnTrainer(const TrainerNews& news) override {
    MutexLock lock(&mu_);
    news_.push_back(news);
  }
  void OnError(const absl::Status& status) override { Finish(0, status); }

  // Refusals since the last call.
  std::vector<FrameRefused> TakeRefusals() {
    MutexLock lock(&mu_);
    return std::exchange(refusals_, {});
  }
  bool Ended(uint64_t round) {
    MutexLock lock(&mu_);
    return done_ >= round || !status_.ok();
  }

  // Before a fetch of state.
  void ForgetState() {
    MutexLock lock(&mu_);
    state_.clear();
  }
  // An array of an extent of `elements` elements, once all of it has arrived: state comes after the
  // image that is being written of it.
  std::vector<char> AwaitState(int array, uint32_t extent, size_t elements) {
    MutexLock lock(&mu_);
    std::vector<char>& bytes = state_[{array, extent}];
    while (bytes.size() < elements * 4 && status_.ok()) cv_.Wait(&mu_);
    return bytes;
  }

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
  std::vector<FrameRefused> refusals_;
  std::vector<TrainerNews> news_;
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

// A point that one thread waits for and another one reaches.
class SyncPoint {
 public:
  void Reach() {
    MutexLock lock(&mu_);
    reached_ = true;
    cv_.NotifyAll();
  }
  void Await() {
    MutexLock lock(&mu_);
    while (!reached_) cv_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar cv_;
  bool reached_ = false;
};

class Cluster : public VoteSink {
 public:
  explicit Cluster(JobPlan plan, uint32_t window_extents = 64, int threads = 2)
      : plan_(std::move(plan)), layout_(LayoutOf(plan_)), executor_("test", 2), workers_(threads) {
    for (const uint32_t id : plan_.servers) {
      EngineConfig config{.self = id, .chunk_bytes = kChunk, .window_extents = window_extents};
      EngineDeps deps{.executor = &executor_,
                      .workers = &workers_,
                      .clock = &clock_,
                      .isa = simd::DetectIsa(),
                      .votes = this};
      engines_[id] = *RoundEngine::Create(plan_, config, deps);
      engines_[id]->Start();
      for (uint32_t s = 0; s < plan_.spec.world; ++s) {
        sinks_[{id, s}] = std::make_shared<RecordingSink>(layout_.extents().size());
        engines_[id]->trainers().AttachSlot(
            {.slot = s, .incarnation = IncarnationOf(s), .epoch = 1}, sinks_[{id, s}],
            [](const absl::StatusOr<SlotWelcome>& welcome) { ASSERT_TRUE(welcome.ok()); });
      }
    }
  }
  ~Cluster() override {
    engines_.clear();
    executor_.Shutdown();
  }

  void SendVote(uint64_t, uint32_t epoch, uint64_t round, uint32_t to, const Vote& vote) override {
    engines_[to]->PeerVote(epoch, round, vote, [](const VoteAnswer&) {});
  }
  void DropVotes(uint64_t) override {}

  // One frame, ready to be sent to the owner of its extent.
  struct Frame {
    FrameHeader header;
    std::string bytes;
  };
  // `values` (whole flat job, tensor after tensor) as frames of `kind`, in push order.
  std::vector<Frame> Frames(FrameKind kind, uint32_t slot, uint64_t round,
                            const std::vector<std::vector<float>>& values,
                            const std::vector<bool>& presence = {}) const {
    std::vector<Frame> frames;
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
        Frame frame{MakeFrame(plan_, kind, slot, round, extent, range),
                    std::string(data, range.length_bytes)};
        frame.header.crc32c = Crc32c(data, range.length_bytes, IdentityCrc(frame.header));
        frames.push_back(std::move(frame));
      }
    }
    return frames;
  }
  void Send(const Frame& frame) {
    engines_[plan_.owner[frame.header.extent]]->Frame(frame.header,
                                                      Payload::FromString(frame.bytes));
  }
  void Send(FrameKind kind, uint32_t slot, uint64_t round,
            const std::vector<std::vector<float>>& values, const std::vector<bool>& presence = {}) {
    for (const Frame& frame : Frames(kind, slot, round, values, presence)) Send(frame);
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
    return Gather([&](uint32_t extent) {
      RecordingSink* sink = sinks_[{plan_.owner[extent], slot}].get();
      MutexLock lock(&sink->mu_);
      return sink->weights_[extent];
    });
  }
  // Masters, m and v of version `round`, which is open and which slot 0 has not begun.
  std::vector<std::vector<std::vector<float>>> FetchArrays(uint64_t round) {
    for (auto& [id, engine] : engines_) {
      sinks_[{id, 0}]->ForgetState();
      engine->trainers().FetchState({0, round, false, {0, 1, 2}});
    }
    std::vector<std::vector<std::vector<float>>> arrays;
    for (int array = 0; array < 3; ++array) {
      arrays.push_back(Gather([&](uint32_t extent) {
        return sinks_[{plan_.owner[extent], 0}]->AwaitState(array, extent,
                                                            layout_.extents()[extent].elements);
      }));
    }
    return arrays;
  }

  // Tensors out of extents; one of no bytes is left zero.
  template <typename BytesOf>
  std::vector<std::vector<float>> Gather(const BytesOf& bytes_of) const {
    std::vector<std::vector<float>> out;
    for (const LayoutTensor& tensor : layout_.tensors()) out.emplace_back(tensor.elements);
    for (uint32_t e = 0; e < layout_.extents().size(); ++e) {
      const std::vector<char> bytes = bytes_of(e);
      const Extent& extent = layout_.extents()[e];
      for (uint32_t i = 0; i < extent.run_count && !bytes.empty(); ++i) {
        const Run& run = layout_.runs()[extent.first_run + i];
        std::memcpy(out[run.tensor].data() + run.tensor_offset,
                    bytes.data() + run.extent_offset * 4, run.elements * 4);
      }
    }
    return out;
  }

  JobPlan plan_;
  Layout layout_;
  RealClock clock_;
  ThreadExecutor executor_;
  ThreadWorkerPool workers_;
  std::map<uint32_t, std::shared_ptr<RoundEngine>> engines_;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<RecordingSink>> sinks_;
};

inline std::vector<std::vector<float>> Random(const std::vector<int64_t>& sizes, uint32_t seed) {
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

}  // namespace ballast::server::testing
