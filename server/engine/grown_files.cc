#include "server/engine/grown_files.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"

namespace ballast::server {
absl::Status GrownFiles::Make(const JobPlan& plan, const GrowthFiles& files, const State& from) {
  if (AreFor(plan, from.fsm->round())) return absl::OkStatus();
  storage_.reset();
  BALLAST_RETURN_IF_ERROR(from.fsm->CheckGrowth(plan));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<JobStorage> storage, files.make(plan));
  BALLAST_FAILPOINT_RETURN("growth.before_state");
  BALLAST_RETURN_IF_ERROR(from.placement->CopyTo(storage->images(), from.fsm->round()));
  if (from.last_decision->has_value()) {
    BALLAST_RETURN_IF_ERROR(storage->log()->Seed(*from.fsm->last_prepared(), **from.last_decision));
  }
  BALLAST_FAILPOINT_RETURN("growth.after_state");
  storage_ = std::move(storage);
  plan_ = plan;
  round_ = from.fsm->round();
  return absl::OkStatus();
}

bool GrownFiles::AreFor(const JobPlan& plan, uint64_t round) const {
  return storage_ != nullptr && round_ == round && plan_.layout_version == plan.layout_version &&
         plan_.epoch.epoch == plan.epoch.epoch && plan_.owner == plan.owner &&
         FirstDifference(plan_.spec, plan.spec).empty();
}

std::unique_ptr<JobStorage> GrownFiles::Take() { return std::move(storage_); }

}  // namespace ballast::server
