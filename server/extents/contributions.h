// Contributions: the bytes behind the registers of one round. Frames are copied in here once; a
// complete extent is summed from here, and the step reads either that sum or, when one slot
// contributes everything, the slot's own bytes.
// Comes from: RoundDriver. Goes to: server/reduce, server/durability, server/state.
// Thread safety: owned by the engine's strand, except ReduceTile, which workers call for distinct
// tiles of extents that are not touched otherwise meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/payload.h"
#include "common/io/arena.h"
#include "common/io/buffer_pools.h"
#include "common/tensor/layout.h"
#include "server/durability/gradient_log.h"
#include "server/reduce/reduce.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

// The summing of one extent: inputs resolved to pointers, one norm per tile as output.
struct ReduceWork {
  uint32_t extent = 0;
  reduce::ExtentContributions input;
  std::vector<const void*> grads;
  std::vector<reduce::ContributionRun> runs;
  std::vector<std::vector<uint8_t>> present;  // what runs point to
  std::vector<reduce::TileNorm> norms;        // per tile
  std::vector<uint32_t> slots;                // seats behind `grads`
};

// What of an extent goes into the vote.
struct ReducedNorm {
  reduce::ExtentNorm norm;
  Nonfinite first_nonfinite;
};

// What the step reads.
struct GradientView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;  // keeps data alive and unchanged
};

class Contributions {
 public:
  // Room for `layout`'s `owned` extents of the epoch's contributors, `window_extents` registers of
  // each.
  Contributions(const Layout& layout, const std::vector<uint32_t>& owned, const EpochRecord& epoch,
                uint32_t window_extents);

  // Gives memory to the registers that a round of `owned` extents fills first, so that it does not
  // have to. Any thread, before the first use of the others.
  void Prepare(const Layout& layout, const std::vector<uint32_t>& owned);

  // Copies a frame's payload to its place and returns the checksum of its identity and payload,
  // in one pass. What a frame with a wrong checksum leaves there counts as absent. Errors:
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<uint32_t> Store(const Layout& layout, const FrameHeader& frame,
                                 const Payload& payload);

  // Resolves what must be summed for an extent the FSM declared complete.
  absl::StatusOr<std::shared_ptr<ReduceWork>> MakeWork(const RoundFsm& fsm, uint32_t extent);

  // After the sum: gives back registers that the step does not need.
  void OnReduced(const ReduceWork& work);

  // Gradient of an extent for the step; MakeWork and its tiles must be done.
  GradientView Gradient(const Layout& layout, uint32_t extent) const;

  // Makes room for a gradient that was reduced before a restart, with the dtype and bytes of
  // `logged` (room up to the next page), and returns where it must be put.
  absl::StatusOr<char*> Restore(const Layout& layout, const std::vector<uint32_t>& contributors,
                                const LoggedExtent& logged);

  // Gives everything of `extent` back (stepped, skipped).
  void Release(uint32_t extent);
  void ReleaseAll();

 private:
  absl::StatusOr<BufferRef> Acquire(const Layout& layout, uint32_t extent, DType dtype);

  struct ExtentBuffers {
    std::vector<BufferRef> grads;  // per slot
    BufferRef sum;
    uint32_t only_slot = 0;  // whose register is the gradient when there is no sum
  };
  uint32_t seats_ = 0;
  uint32_t contributors_ = 0;  // slots that have registers
  uint32_t window_extents_ = 0;
  BufferPools pools_;                   // of registers and sums
  std::vector<ExtentBuffers> extents_;  // by extent id
};

// Writes the sum of one tile and keeps its norm in `work`.
void ReduceTile(const reduce::KernelTable& kernels, ReduceWork* work, size_t tile);
// After all tiles, before OnReduced: a gradient that is not finite is looked for in the registers.
ReducedNorm FinishReduce(const reduce::KernelTable& kernels, const ReduceWork& work);

}  // namespace ballast::server
