#include "common/job/round_result.h"

namespace ballast {

RoundResult ResultOf(uint64_t round, const Decision& decision) {
  return {.round = round,
          .applied = decision.applied,
          .grad_norm = decision.grad_norm,
          .clip_coef = decision.clip_coef,
          .loss_scale = decision.policy.loss_scale,
          .opt_step = decision.policy.opt_step,
          .nonfinite = decision.nonfinite,
          .halted = decision.halted,
          .consecutive_skips = decision.policy.consecutive_skips,
          .first_nonfinite = decision.first_nonfinite,
          .policy = decision.policy.version >= kPolicyVersionScheduled
                        ? std::optional(decision.policy)
                        : std::nullopt};
}

UnappliedRound UnappliedOf(const RoundResult& result) {
  return {.round = result.round,
          .nonfinite = result.nonfinite,
          .consecutive_skips = result.consecutive_skips,
          .first = result.first_nonfinite};
}

}  // namespace ballast
