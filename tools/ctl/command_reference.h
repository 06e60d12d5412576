// The page docs/ballastctl.md, from the table of commands.
// Comes from: ballastctl_reference, tests. Goes to: command. Thread safety: pure function.
#pragma once

#include <string>

namespace ballast::tools {

// Markdown: the commands, their flags, the exit codes, and how output behaves.
std::string CommandReference();

}  // namespace ballast::tools
