// One step of one tensor by any optimizer kind, with all its passes, as a server will drive it: for
// the kernel bench and, through the C interface of kind_step.cc, for the tests against torch.
// Comes from: kernel_bench.cc, Python. Goes to: server/optim. Thread safety: pure functions; a
// KindStepper is thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/job/optimizer.h"
#include "common/tensor/dtype.h"
#include "server/optim/dispatch.h"
#include "server/optim/lamb.h"
#include "server/optim/scalars.h"

namespace ballast::bench {

inline constexpr size_t kKindTileElements = 65536;

// A job's fixed options, and the hyper-parameters of its one group.
struct KindJob {
  OptimizerKind kind;
  Options options;
  Hyper hyper;

  const OptimizerRow& row() const { return *FindOptimizer(kind); }
  size_t Arrays() const { return CountStateArrays(row(), options); }
};

// Copies as many values as the row of `kind`, a number of the table, has.
KindJob MakeKindJob(int kind, const double* options, const double* hyper);

// The caller's memory, as in optim::RunArgs.
struct KindRun {
  float* state[optim::kStateArraysMax] = {};
  const void* grad = nullptr;
  DType grad_dtype = DType::kBF16;
  void* weight = nullptr;
  DType weight_dtype = DType::kBF16;
  size_t count = 0;
  float scale = 1.0f;
};

// One step of one tensor. `kernels` and `job` outlive it.
class KindStepper {
 public:
  KindStepper(const optim::KernelTable& kernels, const KindJob& job, uint64_t step);

  // Pass `pass` over one tile; every pass takes all tiles of the tensor, which are one extent, in
  // order.
  void StepTile(uint32_t pass, const KindRun& tile);

 private:
  const optim::KernelTable& kernels_;
  const KindJob& job_;
  const optim::Scalars scalars_;
  optim::TensorSquares squares_;  // LAMB's, from the first pass to the second
};

// The whole step over consecutive elements, which are tiles of kKindTileElements.
void StepTensor(const optim::KernelTable& kernels, const KindJob& job, uint64_t step,
                const KindRun& tensor);

}  // namespace ballast::bench
