#include "common/policy/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ballast {
namespace {

double At(const PerGroup& values, size_t group) {
  const double* one = std::get_if<double>(&values);
  return one != nullptr ? *one : std::get<std::vector<double>>(values)[group];
}

// Fewer than two steps would divide by log(1) = 0.
double WarmupSteps(int64_t steps) { return static_cast<double>(std::max<int64_t>(2, steps)); }

// Rises from 0 towards 1 while 0 <= i < steps.
double Rise(WarmupType type, double i, double steps) {
  if (type == WarmupType::kLinear) return i / steps;
  return (1.0 / std::log(steps)) * std::log(i + 1);
}

double WarmupAt(const WarmupLR& s, double share, size_t group, const GroupRates& own) {
  const double low = At(s.warmup_min_lr, group);
  const double high = s.warmup_max_lr.has_value() ? At(*s.warmup_max_lr, group) : own.lr;
  return low + (high - low) * share;
}

GroupRates Evaluate(const WarmupLR& s, double i, size_t group, GroupRates own, PolicyProfile) {
  const double steps = WarmupSteps(s.warmup_num_steps);
  const double share = i < steps ? Rise(s.warmup_type, i, steps) : 1.0;
  own.lr = i < 0 ? At(s.warmup_min_lr, group) : WarmupAt(s, share, group, own);
  return own;
}

GroupRates Evaluate(const WarmupDecayLR& s, double i, size_t group, GroupRates own,
                    PolicyProfile profile) {
  const double steps = WarmupSteps(s.warmup.warmup_num_steps);
  if (i < steps) return Evaluate(s.warmup, i, group, own, profile);
  const double total = static_cast<double>(s.total_num_steps);
  const double share = std::max(0.0, (total - i) / std::max(1.0, total - steps));
  own.lr = WarmupAt(s.warmup, share, group, own);
  return own;
}

double CosineRatio(const WarmupCosineLR& s, double i) {
  const double steps = WarmupSteps(s.warmup_num_steps);
  if (i < 0) return 0;
  if (i < steps) {
    const double rise = Rise(s.warmup_type, i, steps);
    return s.warmup_min_ratio + rise * (1.0 - s.warmup_min_ratio);
  }
  const double length = std::max(1.0, static_cast<double>(s.total_num_steps) - steps);
  const double progress = std::min(1.0, (i - steps + 1) / length);
  const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * wave);
}

GroupRates Evaluate(const WarmupCosineLR& s, double i, size_t, GroupRates own, PolicyProfile) {
  own.lr = own.lr * CosineRatio(s, i);
  return own;
}

GroupRates Evaluate(const LRRangeTest& s, double i, size_t group, GroupRates own, PolicyProfile) {
  own.lr = At(s.lr_range_test_min_lr, group);
  if (i < 0) return own;
  double interval = (i + 1) / static_cast<double>(s.lr_range_test_step_size);
  if (s.lr_range_test_staircase) interval = std::floor(interval);
  own.lr = own.lr * (1 + s.lr_range_test_step_rate * interval);
  return own;
}

// A cycle's shape with its defaults filled in; steps in rounds.
struct Cycle {
  explicit Cycle(const OneCycle& s)
      : first(s.cycle_first_step_size),
        second(s.cycle_second_step_size.value_or(first)),
        total(first + second),
        first_stairs(static_cast<double>(s.cycle_first_stair_count)),
        second_stairs(
            static_cast<double>(s.cycle_second_stair_count.value_or(s.cycle_first_stair_count))) {}

  double first, second, total, first_stairs, second_stairs;
};

// Height of the cycle after `rounds` rounds: 0 at its ends, 1 at its peak.
double Height(const Cycle& cycle, double rounds) {
  const double peak = cycle.first / cycle.total;
  const double x = 1.0 + rounds / cycle.total - std::floor(1 + rounds / cycle.total);
  const bool rising = x <= peak;
  const double stairs = rising ? cycle.first_stairs : cycle.second_stairs;
  if (stairs <= 0) return rising ? x / peak : (x - 1) / (peak - 1);
  const double at = std::fmod(rounds, cycle.total);
  const double stair =
      at <= cycle.first ? at * stairs / cycle.first : (cycle.total - at) * stairs / cycle.second;
  return std::floor(stair) / stairs;
}

double CycleLr(const OneCycle& s, const Cycle& cycle, double i, size_t group) {
  const double low = At(s.cycle_min_lr, group);
  if (i < 0) return low;
  if (i < cycle.total) {
    return low + (At(s.cycle_max_lr, group) - low) * Height(cycle, i + 1);
  }
  if (s.decay_step_size == 0 || s.decay_lr_rate == 0) return low;
  return low / (1 + s.decay_lr_rate * ((i - cycle.total + 1) / s.decay_step_size));
}

double CycleMomentum(const OneCycle& s, const Cycle& cycle, double i, size_t group) {
  const double low = At(s.cycle_min_mom, group);
  const double high = At(s.cycle_max_mom, group);
  if (i < 0) return low;
  if (i < cycle.total) return high - (high - low) * Height(cycle, i + 1);
  if (s.decay_step_size == 0 || s.decay_mom_rate == 0) return high;
  return high * (1 + s.decay_mom_rate * ((i - cycle.total + 1) / s.decay_step_size));
}

GroupRates Evaluate(const OneCycle& s, double i, size_t group, GroupRates own,
                    PolicyProfile profile) {
  const Cycle cycle(s);
  own.lr = CycleLr(s, cycle, i, group);
  if (!s.cycle_momentum) return own;
  own.beta1 = CycleMomentum(s, cycle, i, group);
  // Quirk: DeepSpeed overwrites the second beta of every group.
  if (profile == PolicyProfile::kDeepSpeed) own.beta2 = 0.99;
  return own;
}

}  // namespace

GroupRates RatesAt(const Schedule& schedule, int64_t index, size_t group, const GroupRates& own,
                   PolicyProfile profile) {
  const double i = static_cast<double>(index);
  return std::visit([&](const auto& s) { return Evaluate(s, i, group, own, profile); }, schedule);
}

}  // namespace ballast
