// Recovery: a restarted server's state out of its images and its gradient log, by the kernels that
// a live round uses: the newest whole image of each extent, then every decided round behind it.
// Comes from: RoundEngine::Create. Goes to: ModelState (filled), RoundFsm::Restore.
// Thread safety: blocking; while nothing else uses the job. Extents are independent of one another,
// so several may be loaded at a time: while one waits for the disk, others are checked and stepped.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/executor_source.h"
#include "common/tensor/layout.h"
#include "server/durability/job_storage.h"
#include "server/round/model_state.h"
#include "server/round/round_fsm.h"
#include "server/round/round_types.h"

namespace ballast::server {

struct Recovered {
  Restored fsm;
  // The newest decision, for trainers that have not seen it.
  std::optional<DecisionRecord> last_decision;
  // Gradients of the open round that are in the log.
  std::map<uint32_t, LoggedExtent> open_extents;
  // Extents whose image already holds the state after the open (prepared) round.
  std::vector<uint32_t> ahead;
  std::vector<uint64_t> image_versions;  // the newest whole one of each owned extent; 0: none
  uint64_t replayed_rounds = 0;
  uint64_t image_bytes = 0;
  uint64_t log_bytes = 0;
};

// An error of a job's files as its trainers and operators get it: DATA_LOSS STATE_LOST with the
// job's name and what to do, where bytes are damaged, missing or another job's; others stay as they
// are.
absl::Status StateLostIn(const JobPlan& plan, uint32_t server, const absl::Status& status);

// What a job's directory on server `self` must hold.
StorageOptions StorageOptionsOf(const JobPlan& plan, const Layout& layout, uint32_t self,
                                uint32_t checkpoint_rounds);

// Brings back `state`, which has room for `owned`, `lanes` extents at a time or as many as its
// placement allows, on workers of `executors`; one lane is the calling thread. Each takes memory
// for the gradient and the weights of an extent. The result does not depend on their number. A
// fresh directory gives round plan.epoch.start_round with all initial weights missing. Errors:
// DATA_LOSS, naming extent, round and file, when a decided round cannot be rebuilt; those of the
// placement. `done`: grows by one with each extent; may be null.
absl::StatusOr<Recovered> Recover(const JobPlan& plan, const Layout& layout,
                                  const std::vector<uint32_t>& owned, JobStorage* storage,
                                  ModelState* state, int lanes = 1,
                                  ExecutorSource* executors = ThreadSource::Get(),
                                  std::atomic<uint64_t>* done = nullptr);

}  // namespace ballast::server
