// The scalar instance of the optimizer kernels; see kernel_table.h.
// Comes from: dispatch.cc picks it. Goes to: the caller's memory. Thread safety: pure functions.
#include "server/optim/kernel_table.h"
#include "server/simd/vec_scalar.h"

namespace ballast::optim {

extern const KernelTable kScalarKernels;
const KernelTable kScalarKernels = MakeTable<simd::VecScalar>();

}  // namespace ballast::optim
