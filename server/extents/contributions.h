// Contributions: the bytes of the registers of one round. Frames are copied in here once; a
// complete extent is summed from here, and the step reads either that sum or, with a single
// contributor, the slot's own bytes. Comes from: RoundDriver. Goes to: server/reduce,
// server/durability, server/state. Thread safety: owned by the engine's strand, except ReduceTile,
// which workers call for distinct tiles of extents with no other access meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes/payload.h"
#include "common/io/arena.h"
#include "common/io/buffer_pools.h"
#include "common/tensor/layout.h"
#include "server/durability/log/gradient_log.h"
#include "server/extents/part_checksums.h"
#include "server/reduce/reduce.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

// The summing of one extent: inputs resolved to pointers, one norm per tile as output.
struct ReduceWork {
  uint32_t extent = 0;
  reduce::ExtentContributions input;
  std::vector<const void*> grads;
  std::vector<reduce::ContributionRun> runs;
  std::vector<std::vector<uint8_t>> present;  // `runs` points here
  std::vector<reduce::TileNorm> norms;        // per tile
  std::vector<uint32_t> sum_crcs;             // per tile; empty: not wanted
  std::vector<uint32_t> slots;                // slots of `grads`
};

// An extent's part of the vote.
struct ReducedNorm {
  reduce::TileNormSum norm;
  Nonfinite first_nonfinite;
};

// The gradient as the step reads it.
struct GradientView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;  // keeps data alive and unchanged
};

class Contributions {
 public:
  // Room for the `owned` extents of `layout`, with up to `window_extents` registers of each of the
  // epoch's contributors.
  Contributions(const Layout& layout, const std::vector<uint32_t>& owned, const EpochRecord& epoch,
                uint32_t window_extents);

  // Allocates the registers that a round of `owned` extents fills first, so that the round does not
  // have to. Any thread, before the first use of other functions.
  void Prepare(const Layout& layout, const std::vector<uint32_t>& owned);

  // Copies a frame's payload to its place and returns the checksum of its identity and payload,
  // in one pass. Bytes left there by a frame with a wrong checksum count as absent. Errors:
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<uint32_t> Store(const Layout& layout, const FrameHeader& frame,
                                 const Payload& payload);

  // Collects the inputs of the sum for an extent that the FSM declared complete.
  absl::StatusOr<std::shared_ptr<ReduceWork>> MakeWork(const RoundFsm& fsm, uint32_t extent);

  // After the sum: takes its checksums, and gives back registers that the step does not need.
  void OnReduced(const ReduceWork& work);

  // Gradient of an extent for the step; MakeWork and its tiles must be done.
  GradientView Gradient(const Layout& layout, uint32_t extent) const;

  // Crc32c of the bytes of Gradient as they came in, or as their sum was written: one that has
  // changed since does not fit it. Nothing where it is not known: a sum of a job without a log, and
  // a gradient from Restore.
  std::optional<uint32_t> Checksum(const Layout& layout, uint32_t extent) const;

  // Makes room for a gradient reduced before a restart, with the dtype and bytes of `logged` (room
  // up to the next page), and returns its address.
  absl::StatusOr<char*> Restore(const Layout& layout, const std::vector<uint32_t>& contributors,
                                const LoggedExtent& logged);

  // Gives all buffers of `extent` back (stepped, skipped).
  void Release(uint32_t extent);
  void ReleaseAll();

 private:
  absl::StatusOr<BufferRef> Acquire(const Layout& layout, uint32_t extent, DType dtype);
  // Room for the sum, and for its checksums where a log will want them.
  absl::Status MakeSum(const RoundFsm& fsm, ReduceWork* work);

  // One value, so that checksums never outlive their bytes.
  struct CheckedBuffer {
    BufferRef buffer;
    PartChecksums checksums;
  };
  struct ExtentBuffers {
    std::vector<CheckedBuffer> grads;  // per slot
    CheckedBuffer sum;
    uint32_t only_slot = 0;  // without a sum, its register is the gradient
  };
  // The one that Gradient is in.
  const CheckedBuffer& Reduced(uint32_t extent) const;
  uint32_t seats_ = 0;
  uint32_t contributors_ = 0;  // slots with registers
  uint32_t window_extents_ = 0;
  BufferPools pools_;                   // of registers and sums
  std::vector<ExtentBuffers> extents_;  // by extent id
};

// Writes the sum of one tile and keeps its norm, and its checksum where wanted, in `work`.
void ReduceTile(const reduce::KernelTable& kernels, ReduceWork* work, size_t tile);
// After all tiles, before OnReduced: finds the first non-finite gradient in the registers.
ReducedNorm FinishReduce(const reduce::KernelTable& kernels, const ReduceWork& work);

}  // namespace ballast::server
