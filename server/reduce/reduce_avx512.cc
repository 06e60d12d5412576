// The avx512 instance of the reduction kernels; see reduce_kernel.h.
// Comes from: reduce.cc picks it. Goes to: the caller's memory. Thread safety: pure functions.
#include "server/reduce/reduce_kernel.h"
#include "server/simd/vec_avx512.h"

namespace ballast::reduce {

extern const KernelTable kAvx512Kernels;
const KernelTable kAvx512Kernels = MakeTable<simd::VecAvx512>();

}  // namespace ballast::reduce
