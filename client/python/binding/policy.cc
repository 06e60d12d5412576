// Conversions of loss scale and schedule. See policy.h.
#include "client/python/binding/policy.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "client/python/binding/convert.h"

namespace ballast::python {
namespace nb = nanobind;

client::PolicyOptions ToPolicy(const nb::dict& given) {
  client::PolicyOptions options;
  const nb::object scale = given["dynamic_loss_scale"];
  if (!scale.is_none()) {
    client::DynamicLossScale& dynamic = options.loss_scale.emplace();
    std::tie(dynamic.initial_scale_power, dynamic.loss_scale_window, dynamic.hysteresis,
             dynamic.consecutive_hysteresis, dynamic.min_loss_scale) =
        nb::cast<std::tuple<int64_t, int64_t, int64_t, bool, double>>(scale);
  }
  client::ScheduleOptions& schedule = options.schedule;
  schedule.type = nb::cast<std::string>(given["schedule"]);
  schedule.arguments =
      nb::cast<std::map<std::string, client::ScheduleValue>>(given["schedule_arguments"]);
  schedule.groups = nb::cast<std::vector<uint32_t>>(given["schedule_groups"]);
  schedule.group_count = nb::cast<uint32_t>(given["schedule_group_count"]);
  options.profile = ToProfile(nb::cast<std::string>(given["profile"]));
  return options;
}

nb::dict ToDict(const client::Policy& policy) {
  nb::list rates;
  for (const client::GroupRates& group : policy.rates) {
    rates.append(nb::make_tuple(group.lr, group.beta1, group.beta2));
  }
  nb::dict fields;
  fields["loss_scale"] = policy.loss_scale;
  fields["schedule_index"] = policy.schedule_index;
  fields["skipped_rounds"] = policy.skipped_rounds;
  fields["rates"] = rates;
  fields["last_skipped"] = policy.last_skipped;
  fields["why_skipped"] = policy.why_skipped;
  fields["scaler_iteration"] = policy.scaler_iteration;
  fields["last_overflow"] = policy.last_overflow;
  fields["hysteresis_left"] = policy.hysteresis_left;
  return fields;
}

}  // namespace ballast::python
