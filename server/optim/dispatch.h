// The kernel table of an instruction set, and typed access to it.
// Comes from: simd::ChooseIsa in main. Goes to: server/tier and server/state, which call kernels.
// Thread safety: immutable tables; pure functions.
#pragma once

#include <cstddef>

#include "common/job/optimizer.h"
#include "common/tensor/dtype.h"
#include "server/optim/step_args.h"
#include "server/simd/isa.h"

namespace ballast::optim {

// The kernels of `isa`, which this CPU must have (simd::CpuHas; BALLAST_CHECK otherwise). Static
// storage.
const KernelTable& Kernels(simd::Isa isa);

// The step of `kind` for jobs with `arrays` fp32 arrays per parameter (CountStateArrays), gradients
// of `grad` and weights of `weight`, which may not be kNoDType. BALLAST_CHECK: the kind is in
// the table. Kinds and dtypes are validated when a job is created.
RunFn KindStep(const KernelTable& kernels, OptimizerKind kind, size_t arrays, DType grad,
               DType weight);

// The first pass of LAMB for gradients of `grad`, not for kNoDType.
LambSquaresFn LambSquares(const KernelTable& kernels, DType grad);

// The conversion from `dtype` to fp32, and back; not for kNoDType.
UpcastFn Upcast(const KernelTable& kernels, DType dtype);
DowncastFn Downcast(const KernelTable& kernels, DType dtype);

}  // namespace ballast::optim
