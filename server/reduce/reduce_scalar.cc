// The scalar instance of the reduction kernels; see reduce_kernel.h.
// Comes from: reduce.cc picks it. Goes to: the caller's memory. Thread safety: pure functions.
#include "server/reduce/reduce_kernel.h"
#include "server/simd/vec_scalar.h"

namespace ballast::reduce {

extern const KernelTable kScalarKernels;
const KernelTable kScalarKernels = MakeTable<simd::VecScalar>();

}  // namespace ballast::reduce
