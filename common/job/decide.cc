#include "common/job/decide.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast {
namespace {

// Whether the lead server's vote has the rates of each group.
bool StepsByRates(const DecideInput& input) {
  return input.policy.version >= kPolicyVersionScheduled && !IsUpload(input.upload);
}

absl::Status CheckVotes(const DecideInput& input, const std::vector<Vote>& votes,
                        const std::vector<ExtentNorm>& norms) {
  for (const Vote& vote : votes) {
    if (vote.contributor_digest != votes.front().contributor_digest) {
      return ReasonedError(
          absl::StatusCode::kAborted, Reason::kVoteMismatch,
          absl::StrCat("server ", vote.server, " saw other hyper-parameters or gradients present ",
                       "than server ", votes.front().server, " in the same round"),
          {.server = static_cast<int>(vote.server)});
    }
  }
  if (norms.size() != input.extent_group.size()) {
    return absl::InternalError(
        absl::StrCat("votes cover ", norms.size(), " extents of ", input.extent_group.size()));
  }
  for (size_t e = 0; e < norms.size(); ++e) {
    if (norms[e].extent != e) {
      return absl::InternalError(absl::StrCat("votes miss or repeat extent ", e));
    }
  }
  const size_t rates = votes.front().rates.size();
  const size_t groups = input.divisor.size();
  if (StepsByRates(input) && rates != groups) {
    return absl::InternalError(absl::StrCat("server ", votes.front().server, " votes for rates of ",
                                            rates, " groups of ", groups));
  }
  return absl::OkStatus();
}

// Applies an upload. State, unlike gradients, may be Inf: the decision takes it as it is.
void TakeUpload(const DecideInput& input, Decision* decision) {
  decision->applied = true;
  decision->upload = input.upload;
  PolicyState& policy = decision->policy;
  policy.opt_step = input.opt_step.value_or(policy.opt_step);
  policy.schedule_index = input.schedule_index.value_or(policy.schedule_index);
  decision->nonfinite = 0;
  decision->first_nonfinite = Nonfinite();
  decision->grad_scale.assign(input.divisor.size(), 1.0f);
}

// Norm of the mean gradient over all extents. The sum follows the order of `norms`.
double GradNorm(const DecideInput& input, const std::vector<ExtentNorm>& norms, double loss_scale) {
  double mean_sumsq = 0;
  for (const ExtentNorm& norm : norms) {
    const double divisor = input.divisor[input.extent_group[norm.extent]] * loss_scale;
    mean_sumsq += norm.sumsq / (divisor * divisor);
  }
  return std::sqrt(mean_sumsq);
}

// Moves the policy by a round with gradients. Returns their divisor.
double MovePolicy(const DecideInput& input, bool overflow, Decision* decision) {
  PolicyState* const policy = &decision->policy;
  if (overflow) ++policy->consecutive_skips;
  const bool too_many = overflow && input.max_consecutive_skips != 0 &&
                        policy->consecutive_skips > input.max_consecutive_skips;
  decision->halted = too_many || (overflow && input.nonfinite == NonfinitePolicy::kHalt);
  if (!overflow) {
    policy->consecutive_skips = 0;
    ++policy->opt_step;
  }
  if (policy->version < kPolicyVersionScheduled) return policy->loss_scale;
  const LossScalerState before = ScalerOf(*policy);
  const LossScalerStep step = StepLossScaler(input.loss_scaler, before, overflow);
  if (input.loss_scaler.dynamic) {
    const bool may_fall = before.scale > input.loss_scaler.min_loss_scale;
    decision->halted = step.event == LossScalerEvent::kAtMinimum || (decision->halted && !may_fall);
  }
  SetScaler(step.state, policy);
  if (!overflow && input.scheduled) ++policy->schedule_index;
  return step.unscale_by;
}

}  // namespace

DecideInput DecideInputOf(const JobSpec& spec) {
  DecideInput input;
  input.max_grad_norm = spec.max_grad_norm;
  input.nonfinite = spec.nonfinite;
  input.max_consecutive_skips = spec.max_consecutive_skips;
  input.loss_scaler = LossScalerOf(spec);
  input.scheduled = spec.policy.schedule.has_value();
  return input;
}

absl::StatusOr<Decision> Decide(const DecideInput& input, std::vector<Vote> votes) {
  std::sort(votes.begin(), votes.end(),
            [](const Vote& a, const Vote& b) { return a.server < b.server; });
  std::vector<ExtentNorm> norms;
  Decision decision{.policy = input.policy};
  for (Vote& vote : votes) {
    norms.insert(norms.end(), vote.norms.begin(), vote.norms.end());
    decision.nonfinite += vote.nonfinite;
    if (ComesBefore(vote.first_nonfinite, decision.first_nonfinite)) {
      decision.first_nonfinite = vote.first_nonfinite;
    }
  }
  std::sort(norms.begin(), norms.end(),
            [](const ExtentNorm& a, const ExtentNorm& b) { return a.extent < b.extent; });
  if (absl::Status st = CheckVotes(input, votes, norms); !st.ok()) return st;

  if (IsUpload(input.upload)) {
    TakeUpload(input, &decision);
    return decision;
  }
  const double norm = GradNorm(input, norms, input.policy.loss_scale);
  decision.applied = decision.nonfinite == 0 && std::isfinite(norm);
  const double unscale_by = MovePolicy(input, !decision.applied, &decision);
  if (StepsByRates(input)) decision.policy.rates = std::move(votes.front().rates);
  const bool same_scale = unscale_by == input.policy.loss_scale;
  decision.grad_norm = same_scale ? norm : GradNorm(input, norms, unscale_by);
  if (!decision.applied) return decision;
  if (input.max_grad_norm > 0) {
    decision.clip_coef = std::min(1.0, input.max_grad_norm / (decision.grad_norm + 1e-6));
  }
  for (const double divisor : input.divisor) {
    decision.grad_scale.push_back(static_cast<float>(decision.clip_coef / (divisor * unscale_by)));
  }
  decision.scalars = std::move(votes.front().scalars);
  return decision;
}

}  // namespace ballast
