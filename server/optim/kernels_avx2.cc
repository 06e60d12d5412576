// The avx2 instance of the optimizer kernels; see kernel_table.h.
// Comes from: dispatch.cc picks it. Goes to: the caller's memory. Thread safety: pure functions.
#include "server/optim/kernel_table.h"
#include "server/simd/vec_avx2.h"

namespace ballast::optim {

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = MakeTable<simd::VecAvx2>();

}  // namespace ballast::optim
