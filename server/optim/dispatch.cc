// See dispatch.h. Thread safety: immutable tables.
#include "server/optim/dispatch.h"

#include "common/base/check.h"

namespace ballast::optim {

extern const KernelTable kScalarKernels;  // kernels_scalar.cc
extern const KernelTable kAvx2Kernels;    // kernels_avx2.cc
extern const KernelTable kAvx512Kernels;  // kernels_avx512.cc

// Files with instruction-set flags do not include the table of kinds.
static_assert(kStateArraysMax == ballast::kStateArraysMax);

namespace {

size_t Index(DType dtype) {
  BALLAST_CHECK(DTypeBytes(dtype) != 0);
  return static_cast<size_t>(dtype) - 1;
}

Rule RuleOf(OptimizerKind kind, size_t arrays) {
  switch (kind) {
    case OptimizerKind::kAdamW:
      return arrays == 3 ? kRuleAdamW : kRuleAdamWAmsgrad;
    case OptimizerKind::kAdam:
      return arrays == 3 ? kRuleAdam : kRuleAdamAmsgrad;
    case OptimizerKind::kSgd:
      return arrays == 1 ? kRuleSgd : kRuleSgdMomentum;
    case OptimizerKind::kAdagrad:
      return kRuleAdagrad;
    case OptimizerKind::kLion:
      return kRuleLion;
    case OptimizerKind::kLamb:
      return kRuleLamb;
    case OptimizerKind::kApplyDelta:
      return kRuleDelta;
    case OptimizerKind::kUnspecified:
      break;
  }
  BALLAST_CHECK(false);
}

}  // namespace

const KernelTable& Kernels(simd::Isa isa) {
  BALLAST_CHECK(simd::CpuHas(isa));
  switch (isa) {
    case simd::Isa::kScalar:
      break;
    case simd::Isa::kAvx2:
      return kAvx2Kernels;
    case simd::Isa::kAvx512:
      return kAvx512Kernels;
  }
  return kScalarKernels;
}

RunFn KindStep(const KernelTable& kernels, OptimizerKind kind, size_t arrays, DType grad,
               DType weight) {
  return kernels.run[RuleOf(kind, arrays)][Index(grad)][Index(weight)];
}

LambSquaresFn LambSquares(const KernelTable& kernels, DType grad) {
  return kernels.lamb_squares[Index(grad)];
}

UpcastFn Upcast(const KernelTable& kernels, DType dtype) { return kernels.upcast[Index(dtype)]; }

DowncastFn Downcast(const KernelTable& kernels, DType dtype) {
  return kernels.downcast[Index(dtype)];
}

}  // namespace ballast::optim
