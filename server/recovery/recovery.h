// Recovery: rebuilds a restarted server's state from its images and its gradient log: the newest
// whole image of each extent, then every decided round after it, by the kernels of a live round.
// Comes from: RoundEngine::Create. Goes to: ModelState (filled), RoundFsm::Restore.
// Thread safety: blocking; nothing else may use the job meanwhile. Extents are independent, so
// several load at a time: while one waits for the disk, others are checked and stepped.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/layout.h"
#include "common/threads/executor_source.h"
#include "server/durability/job_storage.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"
#include "server/round/round_types.h"

namespace ballast::server {

struct Recovered {
  Restored fsm;
  // The newest decision, for trainers that missed it.
  std::optional<DecisionRecord> last_decision;
  // Logged gradients of the open round.
  std::map<uint32_t, LoggedExtent> open_extents;
  // Extents whose image already holds the state after the open (prepared) round.
  std::vector<uint32_t> ahead;
  std::vector<uint64_t> image_versions;  // newest whole image of each owned extent; 0: none
  uint64_t replayed_rounds = 0;
  uint64_t image_bytes = 0;
  uint64_t log_bytes = 0;
};

// Converts an error of a job's files for its trainers and operators: damaged or missing bytes, or
// another job's, become DATA_LOSS STATE_LOST with the job's name and the remedy; other errors stay.
absl::Status StateLostIn(const JobPlan& plan, uint32_t server, const absl::Status& status);

// Required contents and sizes of a job's directory on server `self`.
StorageOptions StorageOptionsOf(const JobPlan& plan, const Layout& layout, uint32_t self,
                                uint32_t checkpoint_rounds);

// Fills `state`, which has room for `owned`: up to `lanes` extents at a time, fewer if its
// placement allows fewer, on workers of `executors`; a single lane runs on the calling thread. Each
// lane takes memory for the gradient and the weights of an extent. The result does not depend on
// the number of lanes. A fresh directory gives round plan.epoch.start_round with all initial
// weights missing. Errors: DATA_LOSS, naming extent, round and file, when a decided round cannot be
// rebuilt; those of the placement. `done` counts loaded extents; may be null.
absl::StatusOr<Recovered> Recover(const JobPlan& plan, const Layout& layout,
                                  const std::vector<uint32_t>& owned, JobStorage* storage,
                                  ModelState* state, int lanes = 1,
                                  ExecutorSource* executors = ThreadSource::Get(),
                                  std::atomic<uint64_t>* done = nullptr);

}  // namespace ballast::server
