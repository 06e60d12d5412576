// The policy of a job in the client: turns the caller's options into the specification, and the
// servers' state into the program's Policy.
// Comes from: JobOptions, AttachReply, StateInfo, RoundResult. Goes to: JobSpec, RoundReport.
// Thread safety: none; lives under the session's lock.
#pragma once

#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/types.pb.h"
#include "common/job/nonfinite.h"
#include "common/job/policy_spec.h"
#include "common/job/policy_state.h"

namespace ballast::client {

// The policy's state before the next round.
struct PolicyView {
  PolicyState state;
  Nonfinite why_skipped;  // of the newest round with gradients, where it was not applied

  void Take(const v1::Policy& said);
};

// Without why_skipped, which takes the job's layout.
Policy Shown(const PolicyState& state);

// Error: INVALID_ARGUMENT BAD_HYPERPARAM for an unknown schedule or argument, BAD_ARGUMENT for an
// unknown profile.
absl::StatusOr<PolicySpec> PolicySpecOf(const PolicyOptions& options);

}  // namespace ballast::client
