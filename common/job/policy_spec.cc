#include "common/job/policy_spec.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/policy/schedule_arguments.h"
#include "common/types/enum_names.h"

namespace ballast {
namespace {

absl::Status Refuse(const std::string& text) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadHyperparam, text);
}

// Below this, unscaling could overflow fp32 by itself.
constexpr double kMinLossScaleMin = 1.0 / (1 << 20);
// No learning rate, no rate of decay and no count of steps is larger; it keeps all results finite.
constexpr double kArgumentMax = 1e18;

bool IsMomentum(const std::string& name) {
  return name == "cycle_min_mom" || name == "cycle_max_mom";
}

bool HasBetas(const OptimizerRow& optimizer) {
  return std::any_of(optimizer.hyper.begin(), optimizer.hyper.end(),
                     [](const HyperKey& key) { return std::string_view(key.name) == "beta1"; });
}

absl::Status CheckScaler(const PolicySpec& policy) {
  const LossScalerConfig& scaler = *policy.loss_scaler;
  if (!scaler.dynamic || scaler.static_scale != 1 || scaler.profile != policy.profile) {
    return Refuse("a loss scaler of a job is dynamic; a static scale is the job's loss_scale");
  }
  BALLAST_RETURN_IF_ERROR(CheckLossScaler(scaler));
  if (scaler.min_loss_scale >= kMinLossScaleMin) return absl::OkStatus();
  return Refuse(absl::StrCat("min_loss_scale must be at least ", kMinLossScaleMin, ", got ",
                             scaler.min_loss_scale, "; 1 is the default"));
}

// Each number by itself: a round must be able to use the resulting rates. decay_mom_rate may be
// negative; the round keeps the momentum in its range.
absl::Status CheckRange(const std::string& name, double value) {
  if (IsMomentum(name)) {
    if (value >= 0 && value < 1) return absl::OkStatus();
    return Refuse(absl::StrCat(name, " must be in [0, 1), got ", value, "; 0.9 is usual"));
  }
  const double low = name == "decay_mom_rate" ? -kArgumentMax : 0.0;
  if (value >= low && value <= kArgumentMax) return absl::OkStatus();
  return Refuse(absl::StrCat(name, " must be from ", low, " to ", kArgumentMax, ", got ", value,
                             "; rates, ratios and counts of steps are not negative"));
}

absl::Status CheckRanges(const Schedule& schedule) {
  const auto* const cycle = std::get_if<OneCycle>(&schedule);
  for (const ScheduleArgument& argument : ScheduleArguments(schedule)) {
    if (IsMomentum(argument.name) && cycle != nullptr && !cycle->cycle_momentum) continue;
    if (const double* one = std::get_if<double>(&argument.value)) {
      BALLAST_RETURN_IF_ERROR(CheckRange(argument.name, *one));
    } else if (const auto* list = std::get_if<std::vector<double>>(&argument.value)) {
      for (const double value : *list) BALLAST_RETURN_IF_ERROR(CheckRange(argument.name, value));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckJobSchedule(const PolicySpec& policy, const OptimizerRow& optimizer,
                              uint32_t groups) {
  BALLAST_RETURN_IF_ERROR(CheckSchedule(*policy.schedule, ScheduleGroupCount(policy, groups)));
  BALLAST_RETURN_IF_ERROR(CheckRanges(*policy.schedule));
  const auto* const cycle = std::get_if<OneCycle>(&*policy.schedule);
  if (cycle == nullptr || !cycle->cycle_momentum || HasBetas(optimizer)) return absl::OkStatus();
  return Refuse(absl::StrCat("cycle_momentum is true, but ", optimizer.name,
                             " has no beta1 to cycle; give cycle_momentum=false"));
}

absl::Status CheckGroups(const PolicySpec& policy, uint32_t groups) {
  const std::vector<uint32_t>& of = policy.schedule_group;
  if (!policy.schedule.has_value()) {
    if (of.empty() && policy.schedule_group_count == 0) return absl::OkStatus();
    return Refuse("schedule groups are given, but no schedule; leave them out");
  }
  if (!of.empty() && of.size() != groups) {
    return Refuse(absl::StrCat("schedule groups are given for ", of.size(), " groups; the job has ",
                               groups, "; give all or none"));
  }
  const uint32_t count = ScheduleGroupCount(policy, groups);
  for (uint32_t group = 0; group < groups; ++group) {
    if (policy.ScheduleGroupOf(group) < count) continue;
    return Refuse(absl::StrCat("group ", group, " is in schedule group ",
                               policy.ScheduleGroupOf(group), "; the schedule has ", count,
                               " groups; raise schedule_group_count"));
  }
  constexpr uint32_t kMost = 1u << 16;
  if (count <= kMost) return absl::OkStatus();
  return Refuse(absl::StrCat("the schedule has ", count, " groups; the limit is ", kMost));
}

}  // namespace

uint32_t ScheduleGroupCount(const PolicySpec& policy, uint32_t groups) {
  if (policy.schedule_group_count != 0) return policy.schedule_group_count;
  if (policy.schedule_group.empty()) return groups;
  const uint32_t last =
      *std::max_element(policy.schedule_group.begin(), policy.schedule_group.end());
  return last == UINT32_MAX ? last : last + 1;
}

absl::Status CheckPolicy(const PolicySpec& policy, const OptimizerRow& optimizer, uint32_t groups) {
  if (policy.loss_scaler.has_value()) BALLAST_RETURN_IF_ERROR(CheckScaler(policy));
  BALLAST_RETURN_IF_ERROR(CheckGroups(policy, groups));
  if (!policy.schedule.has_value()) return absl::OkStatus();
  return CheckJobSchedule(policy, optimizer, groups);
}

std::vector<std::pair<std::string, std::string>> PolicyFields(const PolicySpec& policy) {
  std::vector<std::pair<std::string, std::string>> fields;
  fields.emplace_back("dynamic loss scale", policy.loss_scaler.has_value() ? "on" : "off");
  if (policy.loss_scaler.has_value()) {
    const LossScalerConfig& scaler = *policy.loss_scaler;
    fields.emplace_back("initial_scale_power", absl::StrCat(scaler.initial_scale_power));
    fields.emplace_back("loss_scale_window", absl::StrCat(scaler.loss_scale_window));
    fields.emplace_back("hysteresis", absl::StrCat(scaler.hysteresis));
    fields.emplace_back("consecutive_hysteresis", scaler.consecutive_hysteresis ? "true" : "false");
    fields.emplace_back("min_loss_scale", absl::StrFormat("%.17g", scaler.min_loss_scale));
  }
  fields.emplace_back("profile", NameOf(policy.profile));
  fields.emplace_back("schedule",
                      policy.schedule.has_value() ? ScheduleType(*policy.schedule) : "none");
  if (!policy.schedule.has_value()) return fields;
  for (const ScheduleArgument& argument : ScheduleArguments(*policy.schedule)) {
    fields.emplace_back(argument.name, ScheduleValueText(argument.value));
  }
  fields.emplace_back("schedule_group_count", absl::StrCat(policy.schedule_group_count));
  fields.emplace_back("schedule groups",
                      absl::StrCat("[", absl::StrJoin(policy.schedule_group, ", "), "]"));
  return fields;
}

}  // namespace ballast
