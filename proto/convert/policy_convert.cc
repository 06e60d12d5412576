#include "proto/convert/policy_convert.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/policy/schedule_arguments.h"
#include "common/types/enum_names.h"

namespace ballast {
namespace {

void ToProto(const LossScalerConfig& scaler, v1::LossScaler* out) {
  out->set_initial_scale_power(scaler.initial_scale_power);
  out->set_loss_scale_window(scaler.loss_scale_window);
  out->set_hysteresis(scaler.hysteresis);
  out->set_consecutive_hysteresis(scaler.consecutive_hysteresis);
  out->set_min_loss_scale(scaler.min_loss_scale);
}

LossScalerConfig ScalerFromProto(const v1::LossScaler& scaler, PolicyProfile profile) {
  return {.initial_scale_power = scaler.initial_scale_power(),
          .loss_scale_window = scaler.loss_scale_window(),
          .hysteresis = scaler.hysteresis(),
          .consecutive_hysteresis = scaler.consecutive_hysteresis(),
          .min_loss_scale = scaler.min_loss_scale(),
          .profile = profile};
}

void ToProto(const ScheduleArgument& argument, v1::ScheduleArgument* out) {
  out->set_name(argument.name);
  if (const double* one = std::get_if<double>(&argument.value)) {
    out->add_value(*one);
  } else if (const auto* list = std::get_if<std::vector<double>>(&argument.value)) {
    out->mutable_value()->Assign(list->begin(), list->end());
    out->set_per_group(true);
  } else {
    out->set_word(std::get<std::string>(argument.value));
  }
}

ScheduleArgument ArgumentFromProto(const v1::ScheduleArgument& argument) {
  if (argument.per_group() || argument.value_size() > 1) {
    return {argument.name(), std::vector<double>(argument.value().begin(), argument.value().end())};
  }
  if (argument.value_size() == 1) return {argument.name(), argument.value(0)};
  return {argument.name(), argument.word()};
}

absl::StatusOr<Schedule> ScheduleFromProto(const v1::Schedule& schedule) {
  std::vector<ScheduleArgument> arguments;
  for (const v1::ScheduleArgument& argument : schedule.arguments()) {
    arguments.push_back(ArgumentFromProto(argument));
  }
  return MakeSchedule(schedule.type(), arguments);
}

}  // namespace

void ToProto(const PolicySpec& policy, v1::JobSpec* out) {
  if (policy.loss_scaler.has_value()) ToProto(*policy.loss_scaler, out->mutable_loss_scaler());
  out->set_profile(static_cast<v1::PolicyProfile>(policy.profile));
  if (!policy.schedule.has_value()) return;
  v1::Schedule* const schedule = out->mutable_schedule();
  schedule->set_type(ScheduleType(*policy.schedule));
  for (const ScheduleArgument& argument : ScheduleArguments(*policy.schedule)) {
    ToProto(argument, schedule->add_arguments());
  }
  out->mutable_schedule_group()->Assign(policy.schedule_group.begin(), policy.schedule_group.end());
  out->set_schedule_group_count(policy.schedule_group_count);
}

absl::StatusOr<PolicySpec> PolicySpecFromProto(const v1::JobSpec& spec) {
  const auto profile = FromNumber<PolicyProfile>(spec.profile());
  if (!profile.has_value()) {
    return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadSpec,
                         NotKnown<PolicyProfile>("profile number", spec.profile()));
  }
  PolicySpec policy;
  policy.profile = *profile;
  if (spec.has_loss_scaler()) {
    policy.loss_scaler = ScalerFromProto(spec.loss_scaler(), policy.profile);
  }
  if (spec.has_schedule()) {
    BALLAST_ASSIGN_OR_RETURN(policy.schedule, ScheduleFromProto(spec.schedule()));
  }
  policy.schedule_group.assign(spec.schedule_group().begin(), spec.schedule_group().end());
  policy.schedule_group_count = spec.schedule_group_count();
  return policy;
}

void ToProto(const GroupRates& rates, v1::GroupRates* out) {
  out->set_lr(rates.lr);
  out->set_beta1(rates.beta1);
  out->set_beta2(rates.beta2);
}

GroupRates RatesFromProto(const v1::GroupRates& rates) {
  return {.lr = rates.lr(), .beta1 = rates.beta1(), .beta2 = rates.beta2()};
}

void ToProto(const PolicyState& policy, v1::Policy* out) {
  out->set_loss_scale(policy.loss_scale);
  out->set_scaler_iteration(policy.scaler_iteration);
  out->set_last_overflow(policy.last_overflow);
  out->set_hysteresis_left(policy.hysteresis_left);
  out->set_skipped(policy.skipped);
  out->set_schedule_index(policy.schedule_index);
  for (const GroupRates& rates : policy.rates) ToProto(rates, out->add_rates());
  out->set_opt_step(policy.opt_step);
  out->set_consecutive_skips(policy.consecutive_skips);
}

PolicyState PolicyFromProto(const v1::Policy& policy) {
  PolicyState state;
  state.version = kPolicyVersionScheduled;
  state.loss_scale = policy.loss_scale();
  state.opt_step = policy.opt_step();
  state.consecutive_skips = policy.consecutive_skips();
  state.scaler_iteration = policy.scaler_iteration();
  state.last_overflow = policy.last_overflow();
  state.hysteresis_left = policy.hysteresis_left();
  state.skipped = policy.skipped();
  state.schedule_index = policy.schedule_index();
  for (const v1::GroupRates& rates : policy.rates()) {
    state.rates.push_back(RatesFromProto(rates));
  }
  return state;
}

}  // namespace ballast
