// Safetensors files for ballast/torch/files.py: opened and checked by common/safetensors, read into
// memory of the caller.
// Comes from: module.cc. Goes to: SafetensorsReader. Thread safety: the caller holds the GIL, which
// is released while a file is read.
#pragma once

#include <nanobind/nanobind.h>

namespace ballast::python {

// Adds SafetensorsFile and read_safetensors_index to the module. Both raise BadArgument, naming the
// file and the rule, for a malformed file.
void DefineSafetensors(nanobind::module_& module);

}  // namespace ballast::python
