// Tensors on a GPU, beside those of the host.
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
  // Host memory that is pinned at Attach, for the frames that are on their way; at least 4 MiB.
  size_t pinned_bytes = size_t{32} << 20;
  // The framework's present stream (a cudaStream_t). The client calls it on the thread of the call
  // that lends tensors, without a lock. Before memory is used, what is on that stream is done; what
  // is queued there after the call sees the new weights.
  std::function<void*()> current_stream;
};

}  // namespace ballast::client
