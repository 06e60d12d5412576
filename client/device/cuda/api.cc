// The table of cuda_abi.h over the CUDA runtime: each function is one call.
// Comes from: CudaLibrary, which finds the table. Goes to: the CUDA runtime, linked statically.
#include <cuda_runtime_api.h>

#include "client/device/cuda/kernels.h"
#include "client/device/cuda_abi.h"

namespace ballast::device::cuda {
namespace {

cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }

int PinnedAllocate(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
}

int StreamCreate(void** stream) {
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
}

int StreamCaptures(void* stream, int* captures) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(StreamOf(stream), &status);
  *captures = status == cudaStreamCaptureStatusNone ? 0 : 1;
  return error;
}

int EventCreate(void** event) {
  return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
}

int EventQuery(void* event, int* done) {
  const cudaError_t error = cudaEventQuery(EventOf(event));
  *done = error == cudaSuccess ? 1 : 0;
  return error == cudaErrorNotReady ? cudaSuccess : error;
}

int DeviceOf(const void* data, int* ordinal) {
  cudaPointerAttributes attributes;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, data);
  const bool on_device = error == cudaSuccess && (attributes.type == cudaMemoryTypeDevice ||
                                                  attributes.type == cudaMemoryTypeManaged);
  *ordinal = on_device ? attributes.device : -1;
  return error;
}

int Copy(void* stream, void* to, const void* from, size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, StreamOf(stream));
}

constexpr Table kTable = {
    .abi_version = kAbiVersion,
    .driver_version = [](int* version) -> int { return cudaDriverGetVersion(version); },
    .runtime_version = [](int* version) -> int { return cudaRuntimeGetVersion(version); },
    .device_count = [](int* count) -> int { return cudaGetDeviceCount(count); },
    .set_device = [](int ordinal) -> int { return cudaSetDevice(ordinal); },
    .pinned_allocate = PinnedAllocate,
    .pinned_free = [](void* memory) -> int { return cudaFreeHost(memory); },
    .device_allocate = [](void** memory, size_t bytes) -> int { return cudaMalloc(memory, bytes); },
    .device_free = [](void* memory) -> int { return cudaFree(memory); },
    .stream_create = StreamCreate,
    .stream_destroy = [](void* stream) -> int { return cudaStreamDestroy(StreamOf(stream)); },
    .stream_synchronize = [](void* stream) -> int {
      return cudaStreamSynchronize(StreamOf(stream));
    },
    .stream_captures = StreamCaptures,
    .stream_wait = [](void* stream, void* event) -> int {
      return cudaStreamWaitEvent(StreamOf(stream), EventOf(event), 0);
    },
    .events = {.create = EventCreate,
               .destroy = [](void* event) -> int { return cudaEventDestroy(EventOf(event)); },
               .record = [](void* event, void* stream) -> int {
                 return cudaEventRecord(EventOf(event), StreamOf(stream));
               },
               .synchronize = [](void* event) -> int {
                 return cudaEventSynchronize(EventOf(event));
               },
               .query = EventQuery},
    .device_of = DeviceOf,
    .copy = Copy,
    .pack = [](void* stream, uint32_t tensor, uint32_t packed, const PieceRun* run) -> int {
      return LaunchPack(StreamOf(stream), tensor, packed, *run);
    },
    .unpack = [](void* stream, uint32_t tensor, uint32_t packed, const PieceRun* run) -> int {
      return LaunchUnpack(StreamOf(stream), tensor, packed, *run);
    },
    .measure = [](void* stream, uint32_t dtype, const TileRun* run) -> int {
      return LaunchMeasure(StreamOf(stream), dtype, *run);
    },
    .error_name = [](int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); },
    .error_text = [](int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); },
};

}  // namespace
}  // namespace ballast::device::cuda

extern "C" __attribute__((visibility("default"))) const ballast::device::cuda::Table*
ballast_cuda_table() {
  return &ballast::device::cuda::kTable;
}
