// `--watch`: a command's table drawn again and again over the last one.
// Comes from: ballastctl. Goes to: the terminal. Thread safety: the main thread.
#pragma once

#include "tools/ctl/command.h"

namespace ballast::tools {

// Runs `command` every Options::every_s seconds until a signal ends the process, or stdout is gone.
// Returns kUsageError, and says so, when stdout is no terminal: a pipe has nothing to redraw.
int Watch(const Command& command, const Options& options);

}  // namespace ballast::tools
