// Launches of the kernels. Comes from: api.cc. Goes to: kernels.cu.
// Dtypes are DType's numbers; any other is cudaErrorInvalidValue, and nothing is launched.
#pragma once

#include <cuda_runtime_api.h>

#include "client/device/cuda_abi.h"

namespace ballast::device::cuda {

cudaError_t LaunchPack(cudaStream_t stream, uint32_t tensor_dtype, uint32_t packed_dtype,
                       const PieceRun& run);
cudaError_t LaunchUnpack(cudaStream_t stream, uint32_t tensor_dtype, uint32_t packed_dtype,
                         const PieceRun& run);
cudaError_t LaunchMeasure(cudaStream_t stream, uint32_t dtype, const TileRun& run);

}  // namespace ballast::device::cuda
