// Learning-rate schedules as pure functions: (schedule, index, group) -> lr and betas, in double.
// Formulas: docs/schedules.md. Index -1 is the value that construction sets.
// Comes from: the job's configuration. Goes to: the hyper-parameters of a round.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "ballast/types.h"

namespace ballast {

// One value for all groups, or one value per group.
using PerGroup = std::variant<double, std::vector<double>>;

enum class WarmupType { kLog, kLinear };

struct WarmupLR {
  PerGroup warmup_min_lr = 0.0;
  std::optional<PerGroup> warmup_max_lr;  // none: the group's own lr
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;

  bool operator==(const WarmupLR&) const = default;
};

struct WarmupDecayLR {
  int64_t total_num_steps = 0;
  WarmupLR warmup = {.warmup_max_lr = PerGroup(0.001)};

  bool operator==(const WarmupDecayLR&) const = default;
};

// Scales each group's own lr.
struct WarmupCosineLR {
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 0.0001;
  WarmupType warmup_type = WarmupType::kLog;

  bool operator==(const WarmupCosineLR&) const = default;
};

struct LRRangeTest {
  PerGroup lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;

  bool operator==(const LRRangeTest&) const = default;
};

struct OneCycle {
  PerGroup cycle_min_lr = 0.0;
  PerGroup cycle_max_lr = 0.0;
  double decay_lr_rate = 0;
  double cycle_first_step_size = 2000;
  std::optional<double> cycle_second_step_size;     // none: as the first
  int64_t cycle_first_stair_count = 0;              // 0: no stairs
  std::optional<int64_t> cycle_second_stair_count;  // none: as the first
  double decay_step_size = 0;                       // 0: no decay
  bool cycle_momentum = true;                       // false for optimizers without betas
  PerGroup cycle_min_mom = 0.8;
  PerGroup cycle_max_mom = 0.9;
  double decay_mom_rate = 0;

  bool operator==(const OneCycle&) const = default;
};

using Schedule = std::variant<WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle>;

// A group's own values, as the user gave them to the optimizer.
struct GroupRates {
  double lr = 0;
  double beta1 = 0;
  double beta2 = 0;

  bool operator==(const GroupRates&) const = default;
};

// Refuses a schedule for a job with `groups` groups with kBadHyperparam; the text names the
// argument, its value, the limit and a remedy.
absl::Status CheckSchedule(const Schedule& schedule, size_t groups);

// Returns the rates of `group` at `index` (-1 and up). `own` holds the group's own values; rates
// that the schedule leaves alone come from there. The schedule must pass CheckSchedule, and `group`
// must be below its number of groups.
GroupRates RatesAt(const Schedule& schedule, int64_t index, size_t group, const GroupRates& own,
                   PolicyProfile profile);

}  // namespace ballast
