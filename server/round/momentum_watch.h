// MomentumWatch: remembers which groups of an SGD job step without momentum. torch gives a
// parameter its momentum buffer at its first step with momentum; a server keeps one buffer for all
// parameters of the job, and cannot tell an unused buffer from a zero one. So a group whose rounds
// had no momentum gets none later. Comes from: RoundDriver: begins, decisions, and the newest
// decision after a restart. Goes to: refusals. Thread safety: on the job's strand.
#pragma once

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "common/job/decide.h"
#include "common/job/job_spec.h"
#include "server/round/round_types.h"

namespace ballast::server {

class MomentumWatch {
 public:
  // Records a decision on a round of a job of `spec`. Skipped rounds and uploads of weights change
  // nothing; an upload of state brings its own buffers, so that every group may have momentum
  // again.
  void OnDecision(const JobSpec& spec, const Decision& decision);
  // INVALID_ARGUMENT BAD_HYPERPARAM when a slot begins a round with momentum for a group whose last
  // round had none.
  absl::Status Check(const JobSpec& spec, uint32_t slot, const RoundBegin& begin) const;

 private:
  std::set<uint32_t> without_;  // groups
};

}  // namespace ballast::server
