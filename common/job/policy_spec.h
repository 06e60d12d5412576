// The policy that a job leaves to the service: a dynamic loss scale, and the schedule of its
// learning rates. Comes from: the first slot's Attach, as part of JobSpec. Goes to: Decide, the
// lead server's vote. Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/job/optimizer.h"
#include "common/policy/loss_scaler.h"
#include "common/policy/schedule.h"

namespace ballast {

struct PolicySpec {
  // A dynamic loss scale; none: JobSpec::loss_scale is static. Its `dynamic` is true, its
  // `static_scale` 1, and its `profile` that below.
  std::optional<LossScalerConfig> loss_scaler;
  std::optional<Schedule> schedule;
  PolicyProfile profile = PolicyProfile::kExact;
  // Per group of the job: the schedule group that it belongs to, which is torch's group. Empty:
  // each group is one of its own. Thawed parameters form a new group of the job in an old schedule
  // group.
  std::vector<uint32_t> schedule_group;
  // How many schedule groups there are, as many as lists of the schedule have values; 0: one more
  // than the largest named.
  uint32_t schedule_group_count = 0;

  bool operator==(const PolicySpec&) const = default;

  // Whether rounds of the job move any policy: its policy state then has version 2.
  bool active() const { return loss_scaler.has_value() || schedule.has_value(); }
  uint32_t ScheduleGroupOf(uint32_t group) const {
    return schedule_group.empty() ? group : schedule_group[group];
  }
};

// Schedule groups of a job with `groups` groups.
uint32_t ScheduleGroupCount(const PolicySpec& policy, uint32_t groups);

// INVALID_ARGUMENT BAD_HYPERPARAM naming the argument, its value, the limit and a remedy. In
// addition to the refusals of CheckLossScaler and CheckSchedule: rates that a round could not use
// (a negative or huge learning rate, a momentum outside of [0, 1)), momenta for an optimizer
// without betas, and schedule groups that do not fit the job's `groups`.
absl::Status CheckPolicy(const PolicySpec& policy, const OptimizerRow& optimizer, uint32_t groups);

// Every field as (name, value), for messages: two policies are equal if and only if these are.
std::vector<std::pair<std::string, std::string>> PolicyFields(const PolicySpec& policy);

}  // namespace ballast
