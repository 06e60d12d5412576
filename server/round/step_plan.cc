#include "server/round/step_plan.h"

#include "absl/strings/str_cat.h"
#include "common/base/mutant.h"
#include "common/base/reason.h"
#include "server/round/scalar_bits.h"

namespace ballast::server {

absl::StatusOr<std::shared_ptr<StepPlan>> MakeStepPlan(const Layout& layout,
                                                       const std::vector<bool>& present,
                                                       const std::vector<uint64_t>& tensor_step,
                                                       const Decision& decision) {
  auto plan = std::make_shared<StepPlan>();
  plan->scale_by_group = decision.grad_scale;
  plan->upload = decision.upload;
  for (const ScalarSet& set : decision.scalars) {
    if (set.bits.size() != kAdamWScalarCount) break;  // Missed below.
    plan->sets.push_back(ScalarsFromBits(set.bits));
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
          .scalars = &plan.by_tensor,
          .upload = ignored ? UploadPlane::kNone : plan.upload};
}

}  // namespace ballast::server
