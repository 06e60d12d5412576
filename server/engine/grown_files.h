// GrownFiles: the files of a durable job that grows. A job's files have the size of its layout, so
// a grown job gets new ones: made and filled with the state of the open round while the old ones
// still count. A crash leaves the job as it was until its record names the new files. Cost: the
// whole state is written once.
// Comes from: RoundDriver (growth). Goes to: JobStorage.
// Thread safety: on the job's strand, which waits for the disk; the job has nothing else to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "server/durability/job_storage.h"
#include "server/engine/round_engine.h"
#include "server/round/round_fsm.h"
#include "server/tier/state_placement.h"

namespace ballast::server {

class GrownFiles {
 public:
  // All state committed before the open round.
  struct State {
    const RoundFsm* fsm = nullptr;
    StatePlacement* placement = nullptr;
    const std::optional<DecisionRecord>* last_decision = nullptr;
  };

  // Makes the files for `plan` and puts `from` there; does nothing when they are made already.
  // Files of a failed attempt, for another plan or an earlier round, are made again. Errors:
  // RoundFsm::CheckGrowth's, those of `files.make`, and the disk's.
  absl::Status Make(const JobPlan& plan, const GrowthFiles& files, const State& from);
  // Hands over the complete files.
  std::unique_ptr<JobStorage> Take();

 private:
  bool AreFor(const JobPlan& plan, uint64_t round) const;

  std::unique_ptr<JobStorage> storage_;  // null: none
  JobPlan plan_;                         // storage_'s
  uint64_t round_ = 0;                   // the open round when storage_ was filled
};

}  // namespace ballast::server
