// The avx2 instance of the reduction kernels; see reduce_kernel.h.
// Comes from: reduce.cc picks it. Goes to: the caller's memory. Thread safety: pure functions.
#include "server/reduce/reduce_kernel.h"
#include "server/simd/vec_avx2.h"

namespace ballast::reduce {

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = MakeTable<simd::VecAvx2>();

}  // namespace ballast::reduce
