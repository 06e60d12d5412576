// `ballastctl ds check`: the verdict on a ds_config.json, which the Python package gives.
// Comes from: ballastctl. Goes to: `ballast.ds_config` in a Python that takes this process's place
// (docs/decisions/027-ds-config-stays-in-python.md). Thread safety: the main thread.
#pragma once

#include <string>
#include <vector>

namespace ballast::tools {

// arguments: what follows `ballastctl ds check`. This process becomes the Python of BALLAST_PYTHON,
// else python3 of PATH, so that its exit code is ballastctl's: 0 nothing is refused, 1 something
// is, 2 wrong usage or a file that cannot be read, 3 that Python has no package ballast, or is too
// old for it. Returns only where no Python takes over: 0 after a help text, 3 without Python; an
// error's text is on stderr.
int DsCheckMain(const std::vector<std::string>& arguments);

}  // namespace ballast::tools
