// Which trainer pushes which extents, where a process group has summed the gradients.
// Comes from: Client::dealt. Goes to: callers that cut their gradients accordingly. C++17-clean.
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace ballast::client {

// A piece of a tensor, in elements.
struct TensorRange {
  uint32_t tensor = 0;  // number in the manifest
  uint64_t offset = 0;
  uint64_t elements = 0;
};

// An extent of the job, and which trainer pushes its gradient with Gradients::kScattered.
struct DealtExtent {
  uint32_t group = 0;
  uint32_t slot = 0;
  std::vector<TensorRange> ranges;  // ascending, of tensors of one dtype
};

}  // namespace ballast::client
