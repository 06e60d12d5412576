// The avx512 instance of the optimizer kernels; see kernel_table.h.
// Comes from: dispatch.cc picks it. Goes to: the caller's memory. Thread safety: pure functions.
#include "server/optim/kernel_table.h"
#include "server/simd/vec_avx512.h"

namespace ballast::optim {

extern const KernelTable kAvx512Kernels;
const KernelTable kAvx512Kernels = MakeTable<simd::VecAvx512>();

}  // namespace ballast::optim
