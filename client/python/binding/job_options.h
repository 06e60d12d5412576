// JobOptions as an object for ballast/session.py.
// Comes from: module.cc. Goes to: ballast/client.h. Thread safety: the caller holds the GIL.
#pragma once

#include <nanobind/nanobind.h>

namespace ballast::python {

// The class JobOptions, whose attributes are named as fields of ballast.config.JobConfig: times in
// seconds, enums by their names (BadArgument for another one), and a loss scale that is a number or
// the five of ballast.loss_scale.DynamicLossScale. `schedule`, (type, arguments, groups, number of
// groups) as in client::ScheduleOptions, and the optimizer come by themselves. Another attribute is
// an AttributeError.
void DefineJobOptions(nanobind::module_& module);

}  // namespace ballast::python
