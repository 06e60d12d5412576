// StepPlan: a decision resolved to the kernels' arguments, the same for a live round and for
// replay. Comes from: Sweep, recovery. Goes to: ExtentStore::StepTile. Thread safety: immutable
// once made, except `overflows`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/decide.h"
#include "common/tensor/layout.h"
#include "server/optim/scalars.h"
#include "server/state/extent_store.h"

namespace ballast::server {

struct StepPlan {
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  std::vector<optim::Scalars> sets;
  std::vector<optim::Scalars> with_ratio;        // per tensor, in LAMB's second pass; else empty
  std::vector<const optim::Scalars*> by_tensor;  // null: no gradient anywhere
  std::vector<float> scale_by_group;
  UploadPlane upload = UploadPlane::kNone;  // else the step replaces state, without scalars
  std::atomic<uint64_t> overflows{0};
};

// Resolves `decision` of a job for tensors with a gradient (`present`) whose step counts before
// the round are `tensor_step`. ABORTED VOTE_MISMATCH when needed scalars are missing; DATA_LOSS for
// a plane of an array that the job lacks.
absl::StatusOr<std::shared_ptr<StepPlan>> MakeStepPlan(const Optimizer& optimizer,
                                                       const Layout& layout,
                                                       const std::vector<bool>& present,
                                                       const std::vector<uint64_t>& tensor_step,
                                                       const Decision& decision);

// Turns the plan of LAMB's first pass into that of the second: each tensor's scalars get its ratio.
// Errors: DATA_LOSS when the ratios are not as many as the tensors.
absl::Status AddRatios(const std::vector<float>& ratios, StepPlan* plan);

// Whether the step touches the extent: any of its tensors has a gradient or is in the uploaded
// plane.
bool Touches(const StepPlan& plan, const Layout& layout, uint32_t extent);

// The step of one extent by `plan`, whose gradient or uploaded plane is the whole extent at
// `grad`, and whose new weights go to `weight`. It points into `plan`.
ExtentStep StepOf(const StepPlan& plan, const Layout& layout, uint32_t extent, const void* grad,
                  DType grad_dtype, void* weight);

}  // namespace ballast::server
