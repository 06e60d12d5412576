#include "common/job/decide.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast {
namespace {

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
  return absl::OkStatus();
}

// Applies an upload. State, unlike gradients, may be Inf: the decision takes it as it is.
void TakeUpload(const DecideInput& input, Decision* decision) {
  decision->applied = true;
  decision->upload = input.upload;
  decision->policy.opt_step = input.opt_step.value_or(decision->policy.opt_step);
  decision->nonfinite = 0;
  decision->first_nonfinite = Nonfinite();
  decision->grad_scale.assign(input.divisor.size(), 1.0f);
}

// Norm of the mean gradient over all extents. The sum follows the order of `norms`.
double GradNorm(const DecideInput& input, const std::vector<ExtentNorm>& norms) {
  double mean_sumsq = 0;
  for (const ExtentNorm& norm : norms) {
    const double divisor = input.divisor[input.extent_group[norm.extent]] * input.policy.loss_scale;
    mean_sumsq += norm.sumsq / (divisor * divisor);
  }
  return std::sqrt(mean_sumsq);
}

}  // namespace

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
  const double loss_scale = input.policy.loss_scale;
  decision.grad_norm = GradNorm(input, norms);
  decision.applied = decision.nonfinite == 0 && std::isfinite(decision.grad_norm);
  if (!decision.applied) {
    const uint64_t skips = ++decision.policy.consecutive_skips;
    decision.halted = input.nonfinite == NonfinitePolicy::kHalt ||
                      (input.max_consecutive_skips != 0 && skips > input.max_consecutive_skips);
    return decision;
  }
  decision.policy.consecutive_skips = 0;
  ++decision.policy.opt_step;
  if (input.max_grad_norm > 0) {
    decision.clip_coef = std::min(1.0, input.max_grad_norm / (decision.grad_norm + 1e-6));
  }
  for (const double divisor : input.divisor) {
    decision.grad_scale.push_back(static_cast<float>(decision.clip_coef / (divisor * loss_scale)));
  }
  decision.scalars = std::move(votes.front().scalars);
  return decision;
}

}  // namespace ballast
