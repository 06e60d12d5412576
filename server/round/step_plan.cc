#include "server/round/step_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/faults/mutant.h"
#include "server/optim/lamb.h"
#include "server/round/scalar_bits.h"

namespace ballast::server {

absl::StatusOr<std::shared_ptr<StepPlan>> MakeStepPlan(const Optimizer& optimizer,
                                                       const Layout& layout,
                                                       const std::vector<bool>& present,
                                                       const std::vector<uint64_t>& tensor_step,
                                                       const Decision& decision) {
  if (IsStatePlane(decision.upload) && ArrayOf(decision.upload) >= StateArrayCount(optimizer)) {
    return absl::DataLossError(absl::StrCat("the decision uploads plane ",
                                            static_cast<uint32_t>(decision.upload),
                                            ", which is none of the job's"));
  }
  auto plan = std::make_shared<StepPlan>();
  plan->optimizer = optimizer.kind;
  for (const float scale : decision.grad_scale) {
    plan->scale_by_group.push_back(optim::GradFactor(optimizer.kind, optimizer.options, scale));
  }
  plan->upload = decision.upload;
  for (const ScalarSet& set : decision.scalars) {
    const std::optional<optim::Scalars> scalars = ScalarsFromBits(optimizer.kind, set.bits);
    if (!scalars.has_value()) break;  // Missed below.
    plan->sets.push_back(*scalars);
  }
  const auto& tensors = layout.tensors();
  plan->by_tensor.resize(tensors.size(), nullptr);
  if (IsUpload(plan->upload)) return plan;
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    if (!present[t]) continue;
    for (size_t s = 0; s < plan->sets.size(); ++s) {
      if (decision.scalars[s].group == tensors[t].group &&
          decision.scalars[s].step == tensor_step[t] + 1) {
        plan->by_tensor[t] = &plan->sets[s];
      }
    }
    if (plan->by_tensor[t] == nullptr) {
      return ReasonedError(absl::StatusCode::kAborted, Reason::kVoteMismatch,
                           absl::StrCat("the lead server's vote lacks the scalars of tensor ", t,
                                        " at step ", tensor_step[t] + 1));
    }
  }
  return plan;
}

absl::Status AddRatios(const std::vector<float>& ratios, StepPlan* plan) {
  const size_t tensors = plan->by_tensor.size();
  if (ratios.size() != tensors) {
    return absl::DataLossError(
        absl::StrCat("the round has ratios of ", ratios.size(), " of ", tensors, " tensors"));
  }
  plan->with_ratio.resize(tensors);
  for (size_t t = 0; t < tensors; ++t) {
    if (plan->by_tensor[t] == nullptr) continue;
    plan->with_ratio[t] = optim::WithRatio(*plan->by_tensor[t], ratios[t]);
    plan->by_tensor[t] = &plan->with_ratio[t];
  }
  return absl::OkStatus();
}

bool Touches(const StepPlan& plan, const Layout& layout, uint32_t extent_id) {
  const Extent& extent = layout.extents()[extent_id];
  if (IsUpload(plan.upload)) return Carries(plan.upload, extent.dtype);
  for (uint32_t i = 0; i < extent.run_count; ++i) {
    if (plan.by_tensor[layout.runs()[extent.first_run + i].tensor] != nullptr) return true;
  }
  return false;
}

ExtentStep StepOf(const StepPlan& plan, const Layout& layout, uint32_t extent, const void* grad,
                  DType grad_dtype, void* weight) {
  const bool ignored = BALLAST_MUTANT(kUploadIgnored) ||
                       (BALLAST_MUTANT(kPlaneIgnored) && IsStatePlane(plan.upload));
  return {.grad = grad,
          .grad_dtype = grad_dtype,
          .weight = weight,
          .scale = plan.scale_by_group[layout.extents()[extent].group],
          .optimizer = plan.optimizer,
          .scalars = &plan.by_tensor,
          .upload = ignored ? UploadPlane::kNone : plan.upload};
}

}  // namespace ballast::server
