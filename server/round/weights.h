// Weights: the weights of the present version by extent, as formed by the step or by a fetch. A
// second fetch of an extent gets the same buffer. Comes from: Sweep, InitialWeights, StateSender.
// Goes to: the same; the buffers go out to trainers. Thread safety: on the job's strand; Prepare on
// any thread before the first use of the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "common/io/buffer_pools.h"
#include "common/tensor/layout.h"

namespace ballast::server {

class Weights {
 public:
  // Buffers for the `owned` extents of `layout`; maps nothing yet.
  Weights(const Layout& layout, const std::vector<uint32_t>& owned);

  // Bytes of a buffer for this extent's weights.
  static uint64_t BufferBytes(const Layout& layout, uint32_t extent);

  // Allocates one set of buffers for `owned`: trainers wait for the first round after a restart,
  // and where the system allocates slowly that round would take several times as long.
  void Prepare(const Layout& layout, const std::vector<uint32_t>& owned);

  // A buffer for the whole of an owned extent. RESOURCE_EXHAUSTED.
  absl::StatusOr<BufferRef> Acquire(const Layout& layout, uint32_t extent);

  // The extent's weights of the present version; empty: not formed.
  BufferRef Find(uint32_t extent) const { return buffers_[extent]; }
  void Keep(uint32_t extent, BufferRef weights) { buffers_[extent] = std::move(weights); }
  // The state of the extent has changed.
  void Forget(uint32_t extent) { buffers_[extent].Reset(); }

 private:
  BufferPools pools_;
  std::vector<BufferRef> buffers_;  // by extent
};

}  // namespace ballast::server
