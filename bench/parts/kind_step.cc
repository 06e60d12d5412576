// See kind_step.h; the C interface is at the end.
#include "bench/parts/kind_step.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/base/check.h"

namespace ballast::bench {
namespace {

// `count` elements of `run` from `begin` on.
KindRun Slice(const KindRun& run, size_t begin, size_t count) {
  KindRun slice = run;
  for (float*& array : slice.state) array = array ? array + begin : nullptr;
  slice.grad = static_cast<const uint8_t*>(run.grad) + begin * DTypeBytes(run.grad_dtype);
  if (run.weight) {
    slice.weight = static_cast<uint8_t*>(run.weight) + begin * DTypeBytes(run.weight_dtype);
  }
  slice.count = count;
  return slice;
}

}  // namespace

KindJob MakeKindJob(int kind, const double* options, const double* hyper) {
  const OptimizerRow* row = FindOptimizer(static_cast<OptimizerKind>(kind));
  BALLAST_CHECK(row != nullptr);
  return {row->kind, Options(options, options + row->options.size()),
          Hyper(hyper, hyper + row->hyper.size())};
}

KindStepper::KindStepper(const optim::KernelTable& kernels, const KindJob& job, uint64_t step)
    : kernels_(kernels),
      job_(job),
      scalars_(optim::MakeScalars(job.kind, job.options, job.hyper, step)) {}

void KindStepper::StepTile(uint32_t pass, const KindRun& tile) {
  optim::RunArgs args = {};
  std::copy(std::begin(tile.state), std::end(tile.state), args.state);
  args.grad = tile.grad;
  args.weight = tile.weight;
  args.count = tile.count;
  args.scale = optim::GradFactor(job_.kind, job_.options, tile.scale);
  std::memcpy(args.k, scalars_.value, sizeof args.k);
  if (job_.row().passes == 2 && pass == 0) {
    optim::AddTile(optim::LambSquares(kernels_, tile.grad_dtype)(args), &squares_);
    return;
  }
  if (pass == 1) {
    args.k[scalars_.count] = optim::TrustRatio(squares_, scalars_);
  }
  optim::KindStep(kernels_, job_.kind, job_.Arrays(), tile.grad_dtype, tile.weight_dtype)(args);
}

void StepTensor(const optim::KernelTable& kernels, const KindJob& job, uint64_t step,
                const KindRun& tensor) {
  KindStepper stepper(kernels, job, step);
  for (uint32_t pass = 0; pass < job.row().passes; ++pass) {
    for (size_t begin = 0; begin < tensor.count; begin += kKindTileElements) {
      const size_t count = std::min(kKindTileElements, tensor.count - begin);
      stepper.StepTile(pass, Slice(tensor, begin, count));
    }
  }
}

}  // namespace ballast::bench

extern "C" {

// Arrays per parameter, the master included.
size_t kind_arrays(int kind, const double* options) {
  using namespace ballast;
  const OptimizerRow* row = FindOptimizer(static_cast<OptimizerKind>(kind));
  BALLAST_CHECK(row != nullptr);
  return CountStateArrays(*row, {options, row->options.size()});
}

// One step of a whole tensor of `count` elements. `state` has kind_arrays pointers to fp32; dtypes
// are DType's numbers; `weight` may be null. 0, or 1 when this CPU cannot run `isa`.
int kind_step(int kind, const double* options, const double* hyper, uint64_t step, const char* isa,
              float* const* state, const void* grad, int grad_dtype, void* weight, int weight_dtype,
              size_t count, float scale) {
  using namespace ballast;
  const auto chosen = simd::ChooseIsa(isa);
  if (!chosen.ok()) {
    std::fprintf(stderr, "%s\n", std::string(chosen.status().message()).c_str());
    return 1;
  }
  const bench::KindJob job = bench::MakeKindJob(kind, options, hyper);
  bench::KindRun run = {.grad = grad,
                        .grad_dtype = static_cast<DType>(grad_dtype),
                        .weight = weight,
                        .weight_dtype = static_cast<DType>(weight_dtype),
                        .count = count,
                        .scale = scale};
  std::copy_n(state, job.Arrays(), run.state);
  bench::StepTensor(optim::Kernels(*chosen), job, step, run);
  return 0;
}

}  // extern "C"
