// A stand-in for the CUDA runtime, so that the real objects of client/device/cuda run without a
// GPU: kernels that nvcc registers are launched as loops over the same functors on the host.
// Comes from: the objects of nvcc 13.0, whose entry points are not documented, and api.cc. Goes
// to: host memory. Work runs at once. There are two GPUs; a stream or event of one is no use with
// the other, as in CUDA. Test only. Thread safety: one thread at a time, but for set_device.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "client/device/cuda/functors.h"
#include "tests/client/device/cuda_standin.h"

namespace ballast::device::cuda {
namespace {

constexpr int kDevices = 2;
thread_local int current_device = 0;

struct Handle {
  int device;
};

struct State {
  std::map<std::string, int> failures;  // by call: its answer
  std::map<const void*, std::string> kernels;
  std::set<void*> streams, events, memory;
  std::map<const char*, std::pair<size_t, int>> ranges;  // of device memory: bytes, GPU
  std::set<void*> capturing;
  int launches = 0;
  size_t copied = 0;
};

State& state() {
  static State* the_state = new State;
  return *the_state;
}

cudaError_t Answer(const char* call) {
  const auto found = state().failures.find(call);
  return found == state().failures.end() ? cudaSuccess : static_cast<cudaError_t>(found->second);
}

template <class T>
cudaError_t Make(const char* call, std::set<void*>& made, T* out) {
  const cudaError_t error = Answer(call);
  if (error != cudaSuccess) return error;
  *out = reinterpret_cast<T>(new Handle{current_device});
  made.insert(static_cast<void*>(*out));
  return cudaSuccess;
}

cudaError_t Destroy(const char* call, std::set<void*>& made, void* handle) {
  if (made.erase(handle) == 0) return cudaErrorInvalidResourceHandle;
  delete static_cast<Handle*>(handle);
  return Answer(call);
}

// A handle that lives, and is the current GPU's. The null stream is every GPU's.
cudaError_t Check(const char* call, const std::set<void*>& made, void* handle) {
  if (handle == nullptr && &made == &state().streams) return Answer(call);
  if (!made.contains(handle) || static_cast<Handle*>(handle)->device != current_device) {
    return cudaErrorInvalidResourceHandle;
  }
  return Answer(call);
}

cudaError_t Allocate(const char* call, void** memory, size_t bytes) {
  const cudaError_t error = Answer(call);
  if (error != cudaSuccess) return error;
  *memory = std::malloc(bytes);
  state().memory.insert(*memory);
  return cudaSuccess;
}

cudaError_t Free(const char* call, void* memory) {
  if (state().memory.erase(memory) == 0) return cudaErrorInvalidValue;
  std::free(memory);
  return Answer(call);
}

using Twin = std::function<void(dim3 grid, dim3 block, void** arguments)>;

template <class Chunk>
void RunChunks(dim3 grid, dim3 block, void** arguments) {
  const PieceRun run = *static_cast<const PieceRun*>(arguments[0]);
  for (uint32_t first = 0; first < grid.x; ++first) {
    for (uint64_t chunk = first; chunk < ChunkCount(run); chunk += grid.x) {
      for (uint32_t thread = 0; thread < block.x; ++thread) Chunk::Run(run, chunk, thread);
    }
  }
}

template <class G>
void RunTiles(dim3 grid, dim3 block, void** arguments) {
  const TileRun run = *static_cast<const TileRun*>(arguments[0]);
  TileLanes lanes;
  for (uint32_t first = 0; first < grid.x; ++first) {
    for (uint64_t tile = first; tile < TileCount(run); tile += grid.x) {
      for (uint32_t lane = 0; lane < block.x; ++lane) MeasureTile<G>::Lane(run, tile, lane, lanes);
      for (uint32_t half = kNormLanes / 2; half > 0; half /= 2) {
        for (uint32_t lane = 0; lane < half; ++lane) MeasureTile<G>::Fold(lanes, half, lane);
      }
      MeasureTile<G>::Store(run, tile, lanes);
    }
  }
}

template <class Tensor, class Packed>
void AddPair(std::map<std::string, Twin>& twins, const std::string& pair) {
  twins["ChunkKernel<PackChunk<" + pair + ">>"] = RunChunks<PackChunk<Tensor, Packed>>;
  twins["ChunkKernel<UnpackChunk<" + pair + ">>"] = RunChunks<UnpackChunk<Tensor, Packed>>;
}

// By the kernel's name without namespaces.
const std::map<std::string, Twin>& Twins() {
  static const auto* twins = [] {
    auto* all = new std::map<std::string, Twin>;
    AddPair<F32, F32>(*all, "F32, F32");
    AddPair<F32, BF16>(*all, "F32, BF16");
    AddPair<F32, F16>(*all, "F32, F16");
    AddPair<BF16, F32>(*all, "BF16, F32");
    AddPair<BF16, BF16>(*all, "BF16, BF16");
    AddPair<BF16, F16>(*all, "BF16, F16");
    AddPair<F16, F32>(*all, "F16, F32");
    AddPair<F16, BF16>(*all, "F16, BF16");
    AddPair<F16, F16>(*all, "F16, F16");
    (*all)["MeasureKernel<F32>"] = RunTiles<F32>;
    (*all)["MeasureKernel<BF16>"] = RunTiles<BF16>;
    (*all)["MeasureKernel<F16>"] = RunTiles<F16>;
    return all;
  }();
  return *twins;
}

// "void a::b::MeasureKernel<a::F32>(a::b::TileRun)" becomes "MeasureKernel<F32>".
std::string ShortName(const char* mangled) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  name = name.substr(0, name.rfind('('));
  // Older demanglers write "> >".
  for (size_t at; (at = name.find("> >")) != std::string::npos;) name.erase(at + 1, 1);
  for (const char* prefix : {"void ", "ballast::device::cuda::", "ballast::device::"}) {
    for (size_t at; (at = name.find(prefix)) != std::string::npos;) {
      name.erase(at, std::strlen(prefix));
    }
  }
  return name;
}

cudaError_t Launch(const void* kernel, dim3 grid, dim3 block, void** arguments, void* stream) {
  const cudaError_t error = Check("cudaLaunchKernel", state().streams, stream);
  if (error != cudaSuccess) return error;
  const auto name = state().kernels.find(kernel);
  if (name == state().kernels.end()) return cudaErrorInvalidDeviceFunction;
  if (grid.x == 0 || block.x == 0 || block.x > 1024) return cudaErrorInvalidConfiguration;
  ++state().launches;
  Twins().at(name->second)(grid, block, arguments);
  return cudaSuccess;
}

}  // namespace
}  // namespace ballast::device::cuda

using namespace ballast::device::cuda;

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void standin_fail(const char* call, int error) { state().failures[call] = error; }
EXPORTED void standin_reset() {
  state().failures.clear();
  state().capturing.clear();
  state().ranges.clear();
  state().launches = 0;
  state().copied = 0;
}
EXPORTED void standin_capture(void* stream) { state().capturing.insert(stream); }
EXPORTED void standin_claim(const void* data, size_t bytes, int ordinal) {
  state().ranges[static_cast<const char*>(data)] = {bytes, ordinal};
}
EXPORTED int standin_launches() { return state().launches; }
EXPORTED size_t standin_copied() { return state().copied; }
EXPORTED size_t standin_alive() {
  return state().streams.size() + state().events.size() + state().memory.size();
}
EXPORTED size_t standin_kernels() { return state().kernels.size(); }

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  state().kernels[host] = ShortName(name);
}
// What nvcc writes for kernel<<<...>>> names these; no code of ours calls them.
unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { std::abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  std::abort();
}

cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t,
                             cudaStream_t stream) {
  return Launch(kernel, grid, block, arguments, stream);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  const cudaError_t error = Answer("cudaDriverGetVersion");
  if (error != cudaSuccess) *version = static_cast<int>(error);  // a test's driver version
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return Answer("cudaGetDeviceCount");
}
cudaError_t cudaSetDevice(int ordinal) {
  current_device = ordinal;
  return Answer("cudaSetDevice");
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return Allocate("cudaHostAlloc", memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return Free("cudaFreeHost", memory); }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const cudaError_t error = Allocate("cudaMalloc", memory, bytes);
  if (error == cudaSuccess) standin_claim(*memory, bytes, current_device);
  return error;
}
cudaError_t cudaFree(void* memory) {
  state().ranges.erase(static_cast<const char*>(memory));
  return Free("cudaFree", memory);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  const auto* at = static_cast<const char*>(data);
  attributes->type = cudaMemoryTypeUnregistered;
  const auto after = state().ranges.upper_bound(at);
  if (after != state().ranges.begin()) {
    const auto& [begin, range] = *std::prev(after);
    if (at < begin + range.first) attributes->type = cudaMemoryTypeDevice;
    attributes->device = range.second;
  }
  return Answer("cudaPointerGetAttributes");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return Make("cudaStreamCreateWithFlags", state().streams, stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Destroy("cudaStreamDestroy", state().streams, stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Check("cudaStreamSynchronize", state().streams, stream);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = state().capturing.contains(stream) ? cudaStreamCaptureStatusActive
                                               : cudaStreamCaptureStatusNone;
  return Check("cudaStreamIsCapturing", state().streams, stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!state().events.contains(event)) return cudaErrorInvalidResourceHandle;
  return Check("cudaStreamWaitEvent", state().streams, stream);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Make("cudaEventCreateWithFlags", state().events, event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Destroy("cudaEventDestroy", state().events, event);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const cudaError_t error = Check("cudaEventRecord", state().events, event);
  return error != cudaSuccess ? error : Check("cudaEventRecord", state().streams, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Check("cudaEventQuery", state().events, event);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Check("cudaEventSynchronize", state().events, event);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const cudaError_t error = Check("cudaMemcpyAsync", state().streams, stream);
  if (error != cudaSuccess) return error;
  std::memcpy(to, from, bytes);
  state().copied += bytes;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfAStandin";
}
const char* cudaGetErrorString(cudaError_t) { return "as the test asked"; }

}  // extern "C"
