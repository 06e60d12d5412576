// Loss scalers, schedules and policy states between protobuf and the plain structs of common.
// Comes from: control, data and peer messages. Goes to: job_convert, server/service, client/cpp.
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "ballast/v1/control.pb.h"
#include "ballast/v1/types.pb.h"
#include "common/job/policy_spec.h"
#include "common/job/policy_state.h"

namespace ballast {

// Fills the policy's fields of `out`, none of a job without a policy.
void ToProto(const PolicySpec& policy, v1::JobSpec* out);
// Errors: INVALID_ARGUMENT BAD_HYPERPARAM for a schedule or an argument that this build does not
// know, BAD_SPEC for an unknown profile. The result still needs CheckPolicy.
absl::StatusOr<PolicySpec> PolicySpecFromProto(const v1::JobSpec& spec);

void ToProto(const GroupRates& rates, v1::GroupRates* out);
GroupRates RatesFromProto(const v1::GroupRates& rates);

// Fills all of `out` but why_skipped; and back, with version 2.
void ToProto(const PolicyState& policy, v1::Policy* out);
PolicyState PolicyFromProto(const v1::Policy& policy);

}  // namespace ballast
