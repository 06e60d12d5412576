// LAMB's ratios, from the squares in the second votes of a round: one per tensor, whichever servers
// and extents hold it. Comes from: RoundFsm. Goes to: the log, StepPlan.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/decide.h"
#include "server/round/round_types.h"

namespace ballast::server {

// Whether a round with this decision takes two passes over the state: an applied step of an
// optimizer with two passes, but no upload.
bool TakesTwoPasses(const Optimizer& optimizer, const Decision& decision);

// Inputs of a round's ratios.
struct RatioInput {
  const JobPlan& plan;
  const Layout& layout;
  const std::vector<bool>& present;          // per tensor
  const std::vector<uint64_t>& tensor_step;  // per tensor, before the round
  const Decision& decision;
  const std::map<uint32_t, Vote>& votes;  // by server: the votes received
};

// The ratio of each tensor, 1 for one without a gradient; empty while some server's squares are
// missing. Errors: ABORTED VOTE_MISMATCH, naming the server and the run, when a server's squares do
// not match the runs that it owns and whose tensors have gradients, or when the decision lacks a
// tensor's scalars.
absl::StatusOr<std::vector<float>> MakeRatios(const RatioInput& input);

}  // namespace ballast::server
