// Schedules by name: a type and its arguments, as ds_config and the wire have them, to and from
// Schedule. Missing arguments have DeepSpeed's defaults.
// Comes from: JobOptions, ballast.v1.Schedule. Goes to: JobSpec, error texts.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/policy/schedule.h"

namespace ballast {

// A number (a flag is 0 or 1), one number per group, or the word of warmup_type.
using ScheduleValue = std::variant<double, std::vector<double>, std::string>;

struct ScheduleArgument {
  std::string name;
  ScheduleValue value;

  bool operator==(const ScheduleArgument&) const = default;
};

// "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest" or "OneCycle".
std::string ScheduleType(const Schedule& schedule);

// Every argument of the schedule, in the order of its declaration, without those left out.
std::vector<ScheduleArgument> ScheduleArguments(const Schedule& schedule);

// The inverse; arguments come in any order. The result still needs CheckSchedule. Errors:
// INVALID_ARGUMENT BAD_HYPERPARAM naming the type or the argument, its value and the known ones: an
// unknown type, an unknown argument or one given twice, a list where one number is expected, a
// fraction where steps are counted.
absl::StatusOr<Schedule> MakeSchedule(const std::string& type,
                                      const std::vector<ScheduleArgument>& arguments);

// A value as messages show it: "0.001", "[0.1, 0.2]", "log".
std::string ScheduleValueText(const ScheduleValue& value);

}  // namespace ballast
