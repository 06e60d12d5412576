// Tensors on a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace ballast::client {

// The NVIDIA GPU that holds tensors of a job; other tensors may be the host's. Tests run on a
// stand-in for CUDA; the GPU kit runs on GPUs (docs/gpu.md).
struct Gpu {
  std::string library;  // path of libballast_cuda.so
  int ordinal = 0;      // CUDA's number of the GPU in this process
  // Host memory pinned at Attach, for the frames in flight; at least 4 MiB.
  size_t pinned_bytes = size_t{32} << 20;
  // The framework's present stream (a cudaStream_t). The client calls it on the thread of the call
  // that lends tensors, without a lock. The client waits for the work on that stream before it uses
  // memory; work queued there after the call sees the new weights.
  std::function<void*()> current_stream;
};

}  // namespace ballast::client
