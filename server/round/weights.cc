#include "server/round/weights.h"

#include <utility>

#include "common/base/status_macros.h"

namespace ballast::server {

absl::StatusOr<Weights> Weights::Create(const Layout& layout, size_t owned) {
  Weights weights;
  weights.buffers_.resize(layout.extents().size());
  for (const size_t width : {size_t{4}, size_t{2}}) {
    // One set on its way out, one being written. Older ones are back: no slot begins a round before
    // it has received all of the last one's weights.
    BALLAST_ASSIGN_OR_RETURN(BufferPool pool,
                             BufferPool::Create({.buffer_bytes = layout.extent_elements() * width,
                                                 .max_buffers = 2 * owned + 8}));
    weights.pools_.push_back(std::move(pool));
  }
  return weights;
}

void Weights::Prepare(const Layout& layout, const std::vector<uint32_t>& owned) {
  size_t wide = 0;
  for (const uint32_t extent : owned) wide += layout.extents()[extent].dtype == DType::kF32;
  pools_[0].Prepare(wide);
  pools_[1].Prepare(owned.size() - wide);
}

absl::StatusOr<BufferRef> Weights::Acquire(DType dtype) {
  return pools_[dtype == DType::kF32 ? 0 : 1].Acquire();
}

}  // namespace ballast::server
