#include "server/cluster/epoch_change.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/reason.h"

namespace ballast::server {

absl::StatusOr<JobPlan> EpochChange::NextPlan(const std::map<uint32_t, uint64_t>& newcomers) const {
  BALLAST_CHECK(AllSealed());
  uint64_t newest = 0;
  for (const auto& [server, answer] : answers_) newest = std::max(newest, answer.version);
  bool all_prepared = true;
  for (const auto& [server, answer] : answers_) {
    all_prepared = all_prepared && answer.version == newest && answer.prepared;
    const bool follows =
        answer.version == newest || (answer.version + 1 == newest && answer.prepared);
    if (follows) continue;
    return ReasonedError(
        absl::StatusCode::kInternal, Reason::kVoteMismatch,
        absl::StrCat("job \"", plan_.spec.name, "\": server ", server, " is at round ",
                     answer.version, " while another is at ", newest,
                     "; was a data directory replaced or rolled back?"),
        {.job = plan_.spec.name, .round = newest, .server = static_cast<int>(server)});
  }
  JobPlan next = plan_;
  ++next.epoch.epoch;
  next.epoch.start_round = all_prepared ? newest + 1 : newest;
  next.sealed_epoch = 0;
  next.resting = false;
  for (const auto& [slot, incarnation] : newcomers)
    next.epoch.members[slot].incarnation = incarnation;
  return next;
}

}  // namespace ballast::server
