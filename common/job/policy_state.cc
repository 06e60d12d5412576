#include "common/job/policy_state.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/job/job_spec.h"

namespace ballast {

PolicyState StartPolicy(const JobSpec& spec) {
  PolicyState policy;
  policy.loss_scale = spec.loss_scale;
  if (!spec.policy.active()) return policy;
  policy.version = kPolicyVersionScheduled;
  SetScaler(StartLossScaler(LossScalerOf(spec)), &policy);
  return policy;
}

LossScalerConfig LossScalerOf(const JobSpec& spec) {
  if (spec.policy.loss_scaler.has_value()) return *spec.policy.loss_scaler;
  return {.dynamic = false, .static_scale = spec.loss_scale, .profile = spec.policy.profile};
}

LossScalerState ScalerOf(const PolicyState& policy) {
  return {.scale = policy.loss_scale,
          .iteration = policy.scaler_iteration,
          .last_overflow = policy.last_overflow,
          .hysteresis_left = policy.hysteresis_left,
          .skipped = policy.skipped};
}

void SetScaler(const LossScalerState& scaler, PolicyState* policy) {
  policy->loss_scale = scaler.scale;
  policy->scaler_iteration = scaler.iteration;
  policy->last_overflow = scaler.last_overflow;
  policy->hysteresis_left = scaler.hysteresis_left;
  policy->skipped = scaler.skipped;
}

std::string LossScaleRefusal(const JobSpec& spec, const PolicyState& policy,
                             const SaidLossScale& said) {
  if (said.value == policy.loss_scale) return "";
  if (said.value == 0 && !spec.policy.loss_scaler.has_value()) return "";
  const std::string expected = absl::StrFormat("%.17g", policy.loss_scale);
  if (said.value == 0) {
    return absl::StrCat("slot ", said.slot, " does not say by what its loss was multiplied; the ",
                        "loss scale of this round is ", expected,
                        ", and the job's is dynamic: ", "give it with the gradients");
  }
  return absl::StrCat("slot ", said.slot, " multiplied its loss by ",
                      absl::StrFormat("%.17g", said.value), "; the loss scale of this round is ",
                      expected, ". Take the one that the last round or the attach has reported, ",
                      "and run the backward pass again");
}

}  // namespace ballast
