// ballast/admin.h for ballast/control.py.
// Comes from: module.cc. Goes to: ballast/admin.h, on the threads of Operations.
// Thread safety: as nanobind.
#pragma once

#include "nanobind/nanobind.h"

namespace ballast::python {

// Adds start_jobs, start_delete_job, start_snapshots, start_delete_snapshot and start_restore. Each
// takes endpoints, security, patience_s and time_scale, and returns an Operation; results are
// dicts.
void DefineAdmin(nanobind::module_& module);

}  // namespace ballast::python
