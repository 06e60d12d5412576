#include "client/cpp/job/policy_view.h"

#include <vector>

#include "client/cpp/job/arguments.h"
#include "common/base/status_macros.h"
#include "common/policy/schedule_arguments.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/policy_convert.h"

namespace ballast::client {

void PolicyView::Take(const v1::Policy& said) {
  state = PolicyFromProto(said);
  why_skipped = NonfiniteFromProto(said.why_skipped());
}

Policy Shown(const PolicyState& state) {
  Policy shown;
  shown.loss_scale = state.loss_scale;
  shown.schedule_index = state.schedule_index;
  shown.skipped_rounds = state.skipped;
  for (const ::ballast::GroupRates& rates : state.rates) {
    GroupRates group;
    group.lr = rates.lr;
    group.beta1 = rates.beta1;
    group.beta2 = rates.beta2;
    shown.rates.push_back(group);
  }
  shown.last_skipped = state.consecutive_skips != 0;
  shown.scaler_iteration = state.scaler_iteration;
  shown.last_overflow = state.last_overflow;
  shown.hysteresis_left = state.hysteresis_left;
  return shown;
}

absl::StatusOr<PolicySpec> PolicySpecOf(const PolicyOptions& options) {
  BALLAST_RETURN_IF_ERROR(CheckKnown("profile", options.profile));
  PolicySpec policy;
  policy.profile = options.profile;
  if (options.loss_scale.has_value()) {
    const DynamicLossScale& given = *options.loss_scale;
    policy.loss_scaler = {.initial_scale_power = given.initial_scale_power,
                          .loss_scale_window = given.loss_scale_window,
                          .hysteresis = given.hysteresis,
                          .consecutive_hysteresis = given.consecutive_hysteresis,
                          .min_loss_scale = given.min_loss_scale,
                          .profile = policy.profile};
  }
  policy.schedule_group = options.schedule.groups;
  policy.schedule_group_count = options.schedule.group_count;
  if (options.schedule.type.empty()) return policy;
  std::vector<ScheduleArgument> arguments;
  for (const auto& [name, value] : options.schedule.arguments) arguments.push_back({name, value});
  BALLAST_ASSIGN_OR_RETURN(policy.schedule, MakeSchedule(options.schedule.type, arguments));
  return policy;
}

}  // namespace ballast::client
