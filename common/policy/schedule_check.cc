// Refusals of schedules; schedule.cc evaluates them.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/policy/refusal.h"
#include "common/policy/schedule.h"

namespace ballast {
namespace {

absl::Status CheckFinite(const char* name, double value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return Refuse(absl::StrCat(name, " must be a finite number, got ", value));
}

absl::Status CheckPerGroup(const char* name, const PerGroup& values, size_t groups) {
  if (const double* one = std::get_if<double>(&values)) return CheckFinite(name, *one);
  const auto& list = std::get<std::vector<double>>(values);
  if (list.size() != groups) {
    return Refuse(absl::StrCat("expected ", groups, " values for ", name, ", got ", list.size(),
                               "; give one number for all groups or one per group"));
  }
  for (const double value : list) BALLAST_RETURN_IF_ERROR(CheckFinite(name, value));
  return absl::OkStatus();
}

absl::Status CheckSteps(const char* name, int64_t steps) {
  if (steps > 0) return absl::OkStatus();
  return Refuse(absl::StrCat(name, " must be a positive integer, got ", steps, "; use 1 or more"));
}

absl::Status Check(const WarmupLR& s, size_t groups) {
  BALLAST_RETURN_IF_ERROR(CheckSteps("warmup_num_steps", s.warmup_num_steps));
  BALLAST_RETURN_IF_ERROR(CheckPerGroup("warmup_min_lr", s.warmup_min_lr, groups));
  if (!s.warmup_max_lr.has_value()) return absl::OkStatus();
  return CheckPerGroup("warmup_max_lr", *s.warmup_max_lr, groups);
}

absl::Status Check(const WarmupDecayLR& s, size_t groups) { return Check(s.warmup, groups); }

absl::Status Check(const WarmupCosineLR& s, size_t) {
  BALLAST_RETURN_IF_ERROR(CheckSteps("warmup_num_steps", s.warmup_num_steps));
  BALLAST_RETURN_IF_ERROR(CheckFinite("warmup_min_ratio", s.warmup_min_ratio));
  return CheckFinite("cos_min_ratio", s.cos_min_ratio);
}

absl::Status Check(const LRRangeTest& s, size_t groups) {
  BALLAST_RETURN_IF_ERROR(CheckPerGroup("lr_range_test_min_lr", s.lr_range_test_min_lr, groups));
  BALLAST_RETURN_IF_ERROR(CheckSteps("lr_range_test_step_size", s.lr_range_test_step_size));
  return CheckFinite("lr_range_test_step_rate", s.lr_range_test_step_rate);
}

absl::Status CheckCycleShape(const OneCycle& s) {
  BALLAST_RETURN_IF_ERROR(CheckFinite("cycle_first_step_size", s.cycle_first_step_size));
  if (s.cycle_first_step_size <= 0) {
    return Refuse(absl::StrCat("cycle_first_step_size must be positive, got ",
                               s.cycle_first_step_size, "; use 1 or more"));
  }
  const double second = s.cycle_second_step_size.value_or(s.cycle_first_step_size);
  BALLAST_RETURN_IF_ERROR(CheckFinite("cycle_second_step_size", second));
  if (second < 0) {
    return Refuse(absl::StrCat("cycle_second_step_size must be non-negative, got ", second,
                               "; leave it out to repeat the first"));
  }
  return CheckFinite("decay_step_size", s.decay_step_size);
}

absl::Status Check(const OneCycle& s, size_t groups) {
  BALLAST_RETURN_IF_ERROR(CheckCycleShape(s));
  BALLAST_RETURN_IF_ERROR(CheckPerGroup("cycle_min_lr", s.cycle_min_lr, groups));
  BALLAST_RETURN_IF_ERROR(CheckPerGroup("cycle_max_lr", s.cycle_max_lr, groups));
  BALLAST_RETURN_IF_ERROR(CheckFinite("decay_lr_rate", s.decay_lr_rate));
  if (!s.cycle_momentum) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(CheckPerGroup("cycle_min_mom", s.cycle_min_mom, groups));
  BALLAST_RETURN_IF_ERROR(CheckPerGroup("cycle_max_mom", s.cycle_max_mom, groups));
  return CheckFinite("decay_mom_rate", s.decay_mom_rate);
}

}  // namespace

absl::Status CheckSchedule(const Schedule& schedule, size_t groups) {
  return std::visit([&](const auto& s) { return Check(s, groups); }, schedule);
}

}  // namespace ballast
