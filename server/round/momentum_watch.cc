#include "server/round/momentum_watch.h"

#include <bit>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/job/optimizer.h"
#include "server/optim/step_args.h"

namespace ballast::server {
namespace {

constexpr size_t kMomentumBits = offsetof(optim::SgdScalars, momentum) / sizeof(uint32_t);

bool HasBuffers(const JobSpec& spec) {
  const Optimizer optimizer = OptimizerOf(spec);
  return optimizer.kind == OptimizerKind::kSgd && optimizer.options[kSgdHasMomentum] != 0;
}

}  // namespace

void MomentumWatch::OnDecision(const JobSpec& spec, const Decision& decision) {
  if (!decision.applied || !HasBuffers(spec)) return;
  if (IsStatePlane(decision.upload)) without_.clear();
  for (const ScalarSet& set : decision.scalars) {
    if (set.bits.size() <= kMomentumBits) continue;
    if (std::bit_cast<float>(set.bits[kMomentumBits]) == 0) {
      without_.insert(set.group);
    } else {
      without_.erase(set.group);
    }
  }
}

absl::Status MomentumWatch::Check(const JobSpec& spec, uint32_t slot,
                                  const RoundBegin& begin) const {
  for (const uint32_t group : without_) {
    if (group >= begin.hyper.size() || begin.hyper[group].size() <= kSgdMomentum) continue;
    const double momentum = begin.hyper[group][kSgdMomentum];
    if (static_cast<float>(momentum) == 0) continue;
    return ReasonedError(
        absl::StatusCode::kInvalidArgument, Reason::kBadHyperparam,
        absl::StrCat("job \"", spec.name, "\": slot ", slot, " begins round ", begin.round,
                     " with momentum ", momentum, " for group ", group,
                     ", whose last round had momentum 0; go back to 0, or start a new job with "
                     "momentum from the first round on"),
        {.job = spec.name, .round = begin.round, .slot = static_cast<int>(slot)});
  }
  return absl::OkStatus();
}

}  // namespace ballast::server
