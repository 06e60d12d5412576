// The kernels: nothing but the index of the thread, and barriers. functors.h has the arithmetic.
// Comes from: api.cc. Goes to: device memory. Compiled with -fmad=false and without fast-math, so
// that the bits are those of the host.
#include "client/device/cuda/kernels.h"

#include "client/device/cuda/functors.h"

namespace ballast::device::cuda {

// 2^31 - 1 blocks is the limit of a launch; a block takes chunks until none is left.
constexpr uint64_t kBlocksMax = 65535;

// `Chunk` is PackChunk or UnpackChunk of two types.
template <class Chunk>
__global__ void __launch_bounds__(kBlockThreads) ChunkKernel(const __grid_constant__ PieceRun run) {
  for (uint64_t chunk = blockIdx.x; chunk < ChunkCount(run); chunk += gridDim.x) {
    Chunk::Run(run, chunk, threadIdx.x);
  }
}

template <class G>
__global__ void __launch_bounds__(kNormLanes) MeasureKernel(const __grid_constant__ TileRun run) {
  __shared__ TileLanes lanes;
  for (uint64_t tile = blockIdx.x; tile < TileCount(run); tile += gridDim.x) {
    MeasureTile<G>::Lane(run, tile, threadIdx.x, lanes);
    __syncthreads();
    for (uint32_t half = kNormLanes / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) MeasureTile<G>::Fold(lanes, half, threadIdx.x);
      __syncthreads();
    }
    if (threadIdx.x == 0) MeasureTile<G>::Store(run, tile, lanes);
    __syncthreads();  // before the next tile's lanes
  }
}

namespace {

unsigned Blocks(uint64_t wanted) {
  return static_cast<unsigned>(wanted < kBlocksMax ? wanted : kBlocksMax);
}

template <class Run>
cudaError_t Launch(const void* kernel, cudaStream_t stream, uint64_t blocks, uint32_t threads,
                   const Run& run) {
  void* arguments[] = {const_cast<Run*>(&run)};
  return cudaLaunchKernel(kernel, dim3(Blocks(blocks)), dim3(threads), arguments, 0, stream);
}

constexpr uint32_t kDTypes = 3;
bool IsDType(uint32_t dtype) { return dtype >= 1 && dtype <= kDTypes; }

template <class Kernel>
const void* Address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

// By the tensor's dtype - 1, then the packed one.
template <template <class Tensor, class Packed> class Chunk>
const void* ChunkKernelOf(uint32_t tensor, uint32_t packed) {
  static const void* const kKernels[kDTypes][kDTypes] = {
      {Address(ChunkKernel<Chunk<F32, F32>>), Address(ChunkKernel<Chunk<F32, BF16>>),
       Address(ChunkKernel<Chunk<F32, F16>>)},
      {Address(ChunkKernel<Chunk<BF16, F32>>), Address(ChunkKernel<Chunk<BF16, BF16>>),
       Address(ChunkKernel<Chunk<BF16, F16>>)},
      {Address(ChunkKernel<Chunk<F16, F32>>), Address(ChunkKernel<Chunk<F16, BF16>>),
       Address(ChunkKernel<Chunk<F16, F16>>)}};
  return kKernels[tensor - 1][packed - 1];
}

const void* MeasureOf(uint32_t dtype) {
  static const void* const kKernels[kDTypes] = {
      Address(MeasureKernel<F32>), Address(MeasureKernel<BF16>), Address(MeasureKernel<F16>)};
  return kKernels[dtype - 1];
}

template <template <class Tensor, class Packed> class Chunk>
cudaError_t LaunchChunks(cudaStream_t stream, uint32_t tensor, uint32_t packed,
                         const PieceRun& run) {
  if (!IsDType(tensor) || !IsDType(packed)) return cudaErrorInvalidValue;
  return Launch(ChunkKernelOf<Chunk>(tensor, packed), stream, ChunkCount(run), kBlockThreads, run);
}

}  // namespace

cudaError_t LaunchPack(cudaStream_t stream, uint32_t tensor_dtype, uint32_t packed_dtype,
                       const PieceRun& run) {
  return LaunchChunks<PackChunk>(stream, tensor_dtype, packed_dtype, run);
}

cudaError_t LaunchUnpack(cudaStream_t stream, uint32_t tensor_dtype, uint32_t packed_dtype,
                         const PieceRun& run) {
  return LaunchChunks<UnpackChunk>(stream, tensor_dtype, packed_dtype, run);
}

cudaError_t LaunchMeasure(cudaStream_t stream, uint32_t dtype, const TileRun& run) {
  if (!IsDType(dtype)) return cudaErrorInvalidValue;
  return Launch(MeasureOf(dtype), stream, TileCount(run), kNormLanes, run);
}

}  // namespace ballast::device::cuda
