// See dispatch.h. Thread safety: immutable tables.
#include "server/optim/dispatch.h"

#include "common/base/check.h"

namespace ballast::optim {

extern const KernelTable kScalarKernels;  // adamw_scalar.cc
extern const KernelTable kAvx2Kernels;    // adamw_avx2.cc
extern const KernelTable kAvx512Kernels;  // adamw_avx512.cc

namespace {

size_t Index(DType dtype) {
  BALLAST_CHECK(DTypeBytes(dtype) != 0);
  return static_cast<size_t>(dtype) - 1;
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

StepFn AdamWStep(const KernelTable& kernels, DType grad, DType weight) {
  return kernels.adamw[Index(grad)][Index(weight)];
}

UpcastFn Upcast(const KernelTable& kernels, DType dtype) { return kernels.upcast[Index(dtype)]; }

DowncastFn Downcast(const KernelTable& kernels, DType dtype) {
  return kernels.downcast[Index(dtype)];
}

}  // namespace ballast::optim
