// Reducer: sums complete extents on the workers, and forms their norms.
// Comes from: RoundDriver (ReduceExtent). Goes to: Contributions, worker pool, RoundDriver.
// Thread safety: on the job's strand; tiles run on workers.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "common/threads/worker_pool.h"
#include "server/extents/contributions.h"
#include "server/reduce/reduce.h"
#include "server/round/job_strand.h"
#include "server/round/round_fsm.h"

namespace ballast::server {

class Reducer {
 public:
  // Runs on the strand when the extent is summed and its registers are given back. busy() does not
  // count that extent any more.
  using Reduced = std::function<void(uint32_t extent, const ReducedNorm& reduced)>;

  // All arguments outlive this.
  Reducer(JobStrand* strand, WorkerPool* workers, const reduce::KernelTable* kernels,
          Contributions* contributions, Reduced reduced)
      : strand_(strand),
        workers_(workers),
        kernels_(kernels),
        contributions_(contributions),
        reduced_(std::move(reduced)) {}

  // Starts the sum of an extent that `fsm` declares complete. RESOURCE_EXHAUSTED.
  absl::Status Start(const RoundFsm& fsm, uint32_t extent);
  // Whether workers read registers now.
  bool busy() const { return under_way_ != 0; }

 private:
  JobStrand* const strand_;
  WorkerPool* const workers_;
  const reduce::KernelTable* const kernels_;
  Contributions* const contributions_;
  const Reduced reduced_;
  uint32_t under_way_ = 0;  // extents
};

}  // namespace ballast::server
