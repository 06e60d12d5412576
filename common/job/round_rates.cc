#include "common/job/round_rates.h"

#include <algorithm>
#include <string_view>
#include <variant>

namespace ballast {
namespace {

// The hyper-parameter `name` of a kind, or null where the kind has none.
double* Find(const OptimizerRow& row, std::string_view name, Hyper* hyper) {
  for (size_t k = 0; k < row.hyper.size(); ++k) {
    if (row.hyper[k].name == name) return &(*hyper)[k];
  }
  return nullptr;
}

double LargestOf(const PerGroup& values) {
  if (const double* one = std::get_if<double>(&values)) return *one;
  const auto& list = std::get<std::vector<double>>(values);
  return *std::max_element(list.begin(), list.end());
}

// An unusable momentum, also NaN, becomes the nearest usable one.
void Limit(const Schedule& schedule, GroupRates* rates) {
  const auto* const cycle = std::get_if<OneCycle>(&schedule);
  if (cycle == nullptr || !cycle->cycle_momentum) return;
  const double most = std::max(
      {kScheduledBetaMax, LargestOf(cycle->cycle_min_mom), LargestOf(cycle->cycle_max_mom)});
  rates->beta1 = rates->beta1 >= 0 ? std::min(rates->beta1, most) : 0;
}

}  // namespace

std::vector<GroupRates> RatesOf(const JobSpec& spec, const PolicyState& policy,
                                const std::vector<Hyper>& own) {
  const OptimizerRow& row = OptimizerRowOf(spec);
  std::vector<GroupRates> all;
  for (uint32_t group = 0; group < own.size(); ++group) {
    Hyper hyper = own[group];
    const auto value = [&](std::string_view name) {
      const double* const found = Find(row, name, &hyper);
      return found != nullptr ? *found : 0.0;
    };
    GroupRates rates{.lr = value("lr"), .beta1 = value("beta1"), .beta2 = value("beta2")};
    if (spec.policy.schedule.has_value()) {
      rates = RatesAt(*spec.policy.schedule, policy.schedule_index,
                      spec.policy.ScheduleGroupOf(group), rates, spec.policy.profile);
      Limit(*spec.policy.schedule, &rates);
    }
    all.push_back(rates);
  }
  return all;
}

std::vector<Hyper> WithRates(const JobSpec& spec, std::vector<Hyper> own,
                             const std::vector<GroupRates>& rates) {
  const OptimizerRow& row = OptimizerRowOf(spec);
  for (size_t group = 0; group < own.size(); ++group) {
    const auto set = [&](std::string_view name, double value) {
      if (double* const found = Find(row, name, &own[group])) *found = value;
    };
    set("lr", rates[group].lr);
    set("beta1", rates[group].beta1);
    set("beta2", rates[group].beta2);
  }
  return own;
}

}  // namespace ballast
