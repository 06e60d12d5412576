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
