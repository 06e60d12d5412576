// The collective seam: sums of gradients and copies of weights among the trainers of a job.
// Comes from: the shares of a round, bucket by bucket (docs/collectives.md). Goes to:
// LocalCollective (threads of one process, for tests) and NcclCollective. torch's process groups
// stay in Python.
// All ranks make the same calls in the same order. A call returns when its result is in memory, or
// with an error; after an error the collective is stale: every later call has that error again, at
// once.
// Thread safety: one call at a time; Abort from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"

namespace ballast::collective {

// Where a call belongs; for the texts of errors.
struct BucketId {
  uint64_t round = 0;
  uint32_t bucket = 0;
};

// Memory is where the trainer's tensors are, and the caller's. It is read and written until the
// call returns.
//
// Errors of every call. UNAVAILABLE: a rank did not arrive within the time, or the transport
// failed; the text names rank, epoch, call, bucket and round. INVALID_ARGUMENT: elements of no
// type, or a call that differs from another rank's; the collective is stale then, too. The status
// of Abort.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t world() const = 0;

  // Adds `bucket`, world x `count` elements, of all ranks; part `rank` of the sum goes to `share`,
  // `count` elements. The two do not overlap. Sums are formed in `dtype`; in which order, the
  // implementation says.
  virtual absl::Status ReduceScatter(BucketId id, DType dtype, const void* bucket, void* share,
                                     size_t count) = 0;

  // Puts every rank's `share`, `bytes` bytes, into its part of `bucket`, world x `bytes`. The two
  // do not overlap. Bits stay as they are.
  virtual absl::Status AllGather(BucketId id, const void* share, void* bucket, size_t bytes) = 0;

  // Ends the call under way and all later ones with `why`, which is not OK. Only the first counts.
  virtual void Abort(absl::Status why) = 0;
};

}  // namespace ballast::collective
