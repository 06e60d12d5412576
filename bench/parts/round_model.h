// What round_bench and recovery_bench train: the tensors of a transformer with random bf16 values,
// the optimizer alone over the same layout, and a scalar reference for some of the tensors.
// Comes from: round_bench, recovery_bench. Goes to: server/state and server/optim, in this process.
// Thread safety: one caller's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "bench/parts/kind_step.h"
#include "common/io/arena.h"
#include "common/tensor/layout.h"
#include "common/threads/thread_worker_pool.h"
#include "server/state/extent_store.h"

namespace ballast::bench {

inline constexpr uint32_t kTileElements = 65536;
inline constexpr uint32_t kExtentElements = 1048576;

// The same for every round.
inline const client::Hyper kHyper = client::AdamWHyper(3e-4, 0.9, 0.95, 1e-8, 0.1);
inline const KindJob kAdamWJob = {OptimizerKind::kAdamW, {0, 0}, kHyper};

// Tensors and their memory: one arena of gradients and one of weights, each tensor at a multiple of
// 64 bytes.
struct Model {
  // A model of at least `parameters` elements, without memory. INTERNAL for a bug of ours.
  static absl::StatusOr<Model> Describe(uint64_t parameters);
  // Maps and fills the tensors' memory. After every fork: a parent that writes to huge pages which
  // it shares with a child gets small ones. With fewer than all their bytes as
  // `gradient_bytes_max`, tensors share gradients. Errors: RESOURCE_EXHAUSTED.
  absl::Status Allocate(size_t gradient_bytes_max = SIZE_MAX);

  uint64_t elements = 0;
  std::vector<client::Tensor> tensors;
  std::vector<uint64_t> tensor_elements;
  std::vector<client::TensorBuffers> buffers;
  std::vector<uint32_t> sampled;  // verified tensors
  Layout layout;
  Arena gradients;
  Arena weights;
};

// The optimizer's work of a round and nothing else: every tile of the job's layout stepped once by
// a WorkerPool, from 16-bit gradients to 16-bit weights, with the kernel a server would choose.
class OptimizerOnly {
 public:
  static absl::StatusOr<std::unique_ptr<OptimizerOnly>> Make(const Model& model, int threads);
  // Seconds of one step; the first one has number 1.
  double Step(uint64_t number);

 private:
  OptimizerOnly(const Model& model, server::ExtentStore store, int threads)
      : layout_(model.layout), store_(std::move(store)), pool_(threads, "optimizer") {}
  absl::Status MakeBuffers();

  const Layout layout_;
  server::ExtentStore store_;
  ThreadWorkerPool pool_;
  Arena gradients_;
  Arena weights_;
  std::vector<std::pair<uint32_t, uint32_t>> tiles_;  // extent, tile
};

// The sampled tensors stepped by the scalar kernel.
class Reference {
 public:
  explicit Reference(const Model& model, const KindJob& job = kAdamWJob);
  void Step();
  // Overwrites the sampled weights in `model`, so that the old ones cannot pass for new ones.
  void Spoil(Model* model) const;

  // Elements of the sampled weights in `model` that differ from the reference.
  uint64_t DifferingWeights(const Model& model) const;
  // Differing values in the masters and state arrays that `client` hands out.
  absl::StatusOr<uint64_t> DifferingState(client::Client* client) const;

 private:
  struct Tensor {
    uint32_t index = 0;
    const char* grad = nullptr;
    std::vector<std::vector<float>> arrays;  // the masters first
    std::vector<uint16_t> weight;
  };

  optim::RunArgs RunOf(Tensor* tensor, uint64_t begin, uint64_t count) const;
  optim::TensorSquares SquaresOf(Tensor* tensor, const optim::Scalars& scalars) const;

  const KindJob job_;
  const Layout layout_;
  size_t tensor_count_ = 0;
  std::vector<Tensor> tensors_;
  uint64_t steps_ = 0;
};

// A round of a VerifiedJob, and how long its trainer waited for it.
struct TimedRound {
  double seconds = 0;
  client::RoundReport report;
};

// A job with one trainer, this process, whose weights are compared with a Reference.
class VerifiedJob {
 public:
  // Tiles and extents of `options` become those of this file; its optimizer is the one of `kind`.
  // `model` outlives the job. Errors: Client::Attach's.
  static absl::StatusOr<std::unique_ptr<VerifiedJob>> Attach(client::JobOptions options,
                                                             Model* model,
                                                             const KindJob& kind = kAdamWJob);

  // One round. Old weights cannot pass for its own.
  absl::StatusOr<TimedRound> Round();
  // For a round run with client(): Spoil() before it, CheckRound() after it.
  void Spoil() { reference_.Spoil(model_); }
  void CheckRound();
  // Compares the weights with those after the last round.
  void CheckWeights() { differing_ += reference_.DifferingWeights(*model_); }
  // Compares masters and state arrays, and leaves the job.
  absl::Status Verify();

  client::Client* client() { return client_.get(); }
  // Values that differ from the reference's.
  uint64_t differing() const { return differing_; }

 private:
  VerifiedJob(Model* model, const KindJob& kind, std::unique_ptr<client::Client> client)
      : model_(model), hyper_(kind.hyper), reference_(*model, kind), client_(std::move(client)) {}

  Model* const model_;
  const client::Hyper hyper_;
  Reference reference_;
  const std::unique_ptr<client::Client> client_;
  uint64_t differing_ = 0;
};

}  // namespace ballast::bench
