// Loss scale and schedule between Python and the C++ client.
// Comes from: module.cc. Goes to: ballast/policy.h. Thread safety: the caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "ballast/client.h"

namespace ballast::python {

// Of what ballast/session.py's _policy() makes: "dynamic_loss_scale" (None, or the five
// numbers of ballast.loss_scale.DynamicLossScale in its order), "schedule" (its name, or ""),
// "schedule_arguments", "schedule_groups", "schedule_group_count" and "profile". Raises KeyError
// or RuntimeError for a dict of another form, BadArgument for an unknown profile.
client::PolicyOptions ToPolicy(const nanobind::dict& given);

// Every field by its name; "rates" as (lr, beta1, beta2) each.
nanobind::dict ToDict(const client::Policy& policy);

}  // namespace ballast::python
