// The policy of a job in the client: from the caller's options to the specification, and from what
// the servers say to what the program sees.
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

// What the next round begins with.
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
