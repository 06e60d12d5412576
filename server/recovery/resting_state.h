// RestingState: the state of a resting job, read from its files without an engine, for a snapshot.
// Nothing writes the files meanwhile, so nothing has to be held, and nothing is trimmed.
// Comes from: RestingJobFiles. Goes to: JobStorage, CaptureExtents.
// Thread safety: thread-compatible; every call blocks on the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/durability/job_storage.h"
#include "server/recovery/capture.h"
#include "server/round/round_types.h"
#include "server/simd/isa.h"

namespace ballast::server {

class RestingState {
 public:
  // `plan` as server `self` has it; `storage` has its files. `isa` selects the kernels that bring
  // older images to the round. Errors: FAILED_PRECONDITION BAD_ARGUMENT when the job has not
  // finished a round yet.
  static absl::StatusOr<std::shared_ptr<RestingState>> Open(const JobPlan& plan, uint32_t self,
                                                            std::unique_ptr<JobStorage> storage,
                                                            simd::Isa isa);

  // The round after the last one decided here.
  uint64_t round() const { return capture_.round; }
  const JobPlan& plan() const { return plan_; }
  const Layout& layout() const { return capture_.layout; }

  // Hands every extent to `take`, as CaptureExtents does. Errors: FAILED_PRECONDITION JOB_BUSY when
  // another server has decided a later round, which this one has to learn first; ABORTED when
  // `cancelled` was set; those of `take`; DATA_LOSS STATE_LOST when no image of an extent is whole.
  absl::StatusOr<CapturedRound> Capture(uint64_t round, const TakeExtent& take,
                                        const std::atomic<bool>& cancelled);

  RestingState(const JobPlan& plan, uint32_t self, std::unique_ptr<JobStorage> storage,
               struct Capture capture)
      : plan_(plan), self_(self), storage_(std::move(storage)), capture_(std::move(capture)) {}

 private:
  absl::Status CaptureExtent(uint32_t extent, const TakeExtent& take,
                             const std::atomic<bool>& cancelled);

  const JobPlan plan_;
  const uint32_t self_;
  const std::unique_ptr<JobStorage> storage_;
  struct Capture capture_;
};

}  // namespace ballast::server
