// What Python says of a GPU: the CUDA part, the pinned memory, and the framework's stream.
// Comes from: ballast/torch/gpu.py, which sets the stream before each call. Goes to:
// Client::Attach. The client reads the stream on threads of its own, which are not torch's. Thread
// safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ballast/client.h"

namespace ballast::python {

class Gpu {
 public:
  // Below 4 MiB of pinned memory the attach is refused.
  Gpu(std::string library, int ordinal, int64_t pinned_bytes)
      : stream_(std::make_shared<std::atomic<uintptr_t>>(0)) {
    options_.library = std::move(library);
    options_.ordinal = ordinal;
    options_.pinned_bytes = pinned_bytes < 0 ? 0 : static_cast<size_t>(pinned_bytes);
    options_.current_stream = [stream = stream_] {
      return reinterpret_cast<void*>(stream->load());
    };
  }

  // A cudaStream_t: the framework's stream of the next call.
  void SetStream(uintptr_t stream) { stream_->store(stream); }
  const client::Gpu& options() const { return options_; }

 private:
  const std::shared_ptr<std::atomic<uintptr_t>> stream_;
  client::Gpu options_;
};

}  // namespace ballast::python
