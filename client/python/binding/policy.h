// Loss scale and schedule between Python and the C++ client.
// Comes from: module.cc. Goes to: ballast/policy.h. Thread safety: the caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "ballast/client.h"

namespace ballast::python {

// Every field by its name; "rates" as (lr, beta1, beta2) each.
nanobind::dict ToDict(const client::Policy& policy);

}  // namespace ballast::python
