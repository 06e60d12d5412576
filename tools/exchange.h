// `ballastctl export` and `ballastctl import`.
// Comes from: ballastctl. Goes to: the jobs' home. Thread safety: the main thread.
#pragma once

#include "tools/admin_call.h"

namespace ballast::tools {

// Both return the exit code; results go to stdout, progress and errors to stderr.
int Export(const Options& options);
int Import(const Options& options);

}  // namespace ballast::tools
