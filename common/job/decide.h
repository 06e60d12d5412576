// Decide(): the pure function every server of a job computes from the same votes, so that clip
// factor, skip and loss scale need no coordinator and no extra hop.
// Comes from: PREPARE votes of all servers. Goes to: the step, the RoundResult, later the log.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/job_spec.h"
#include "common/job/nonfinite.h"
#include "common/job/policy_state.h"
#include "common/job/upload_plane.h"

namespace ballast {

// Sum of squares of one extent's sum of raw contributions.
struct ExtentNorm {
  uint32_t extent = 0;
  double sumsq = 0;

  bool operator==(const ExtentNorm&) const = default;
};

// fp32 scalars for tensors of `group` taking their `step`-th step; bits in the optimizer's order.
struct ScalarSet {
  uint32_t group = 0;
  uint64_t step = 0;
  std::vector<uint32_t> bits;

  bool operator==(const ScalarSet&) const = default;
};

// Results of LAMB's first pass on one tensor's part of one extent: sums of squares of the masters
// before the step and of the updates.
struct RunSquares {
  uint32_t extent = 0;
  uint32_t tensor = 0;
  double p = 0;
  double u = 0;

  bool operator==(const RunSquares&) const = default;
};

// One server's vote on one round.
struct Vote {
  uint32_t server = 0;
  std::vector<ExtentNorm> norms;  // ascending extent
  uint64_t nonfinite = 0;
  uint32_t contributor_digest = 0;
  std::vector<ScalarSet> scalars;  // only from the lowest server id
  Nonfinite first_nonfinite;       // of the server's extents
  // Per group, the rates of the round's step. From the lowest server id of a job whose policy state
  // has version 2, in a round with gradients; else none.
  std::vector<GroupRates> rates;
  // The second vote of a round whose optimizer takes two passes: of each run that the server owns
  // and whose tensor has a gradient, by extent, then by run. Nothing before the first pass is over.
  std::optional<std::vector<RunSquares>> squares;
};

struct Decision {
  bool applied = false;
  bool halted = false;  // not applied, and the trainers get an error
  // Applied: the pushed bytes replace this part of the state, and nothing else.
  UploadPlane upload = UploadPlane::kNone;
  double grad_norm = 0;  // global 2-norm of the unscaled mean, fp64
  double clip_coef = 1;
  // Factor per group folded into the step: fp32(coef / (divisor * loss_scale)).
  std::vector<float> grad_scale;
  uint64_t nonfinite = 0;
  Nonfinite first_nonfinite;  // over all servers; of a round not applied
  std::vector<ScalarSet> scalars;
  PolicyState policy;  // after the round
};

struct DecideInput {
  double max_grad_norm = 0;
  NonfinitePolicy nonfinite = NonfinitePolicy::kSkip;
  uint32_t max_consecutive_skips = JobSettings{}.max_consecutive_skips;
  std::vector<double> divisor;         // per group, from the epoch's contributor sets
  std::vector<uint32_t> extent_group;  // per extent
  PolicyState policy;                  // before the round
  // How policy states of version 2 move.
  LossScalerConfig loss_scaler;
  bool scheduled = false;  // applied rounds move the index of a schedule
  UploadPlane upload = UploadPlane::kNone;
  // After the round, where an upload sets them.
  std::optional<uint64_t> opt_step;
  std::optional<int64_t> schedule_index;
};

// The part of a decision's input from the job's specification: everything but divisors, extents,
// the policy before the round, and uploads.
DecideInput DecideInputOf(const JobSpec& spec);

// The decision of one round. `votes` must hold every server exactly once; order does not matter.
// Norms are combined in extent-id order in fp64. With groups of one common divisor W:
//   norm = sqrt(sum) / (W * loss_scale);  coef = min(1, max_grad_norm / (norm + 1e-6))
// (DeepSpeed's form); 0 switches clipping off. A non-finite element or an overflowed sum of squares
// skips the round everywhere, or halts it: under kHalt, and when max_consecutive_skips were skipped
// before it. A halted round has the effects of a skipped one; the counter starts again with the
// next applied round.
// A policy state of version 2 moves as StepLossScaler says, by every round with gradients, also by
// one in which no tensor has any. `loss_scale` in the formulas is then the divisor of gradients:
// the scale before the round, or under the profile DeepSpeed the one after it. A dynamic scale that
// may still fall ends a row of skips by itself: max_consecutive_skips counts only at its minimum,
// where an overflow with no hysteresis left halts the round. The index of a schedule moves by one
// in an applied round. Uploads move neither; one with step counts may set the index. Errors:
// ABORTED VOTE_MISMATCH when servers saw different contributions; INTERNAL when extents are missing
// or doubled, or the lead server's rates are not those of all groups.
absl::StatusOr<Decision> Decide(const DecideInput& input, std::vector<Vote> votes);

}  // namespace ballast
