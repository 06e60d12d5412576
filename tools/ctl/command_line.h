// Command lines of ballastctl: the command they name, their arguments, and the help.
// Comes from: ballastctl's main. Goes to: the commands. Thread safety: pure functions, but for the
// environment variable BALLAST_ENDPOINTS.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/ctl/command.h"

namespace ballast::tools {

// The command that `arguments` begin with. INVALID_ARGUMENT names the word and the nearest command,
// or what may follow it.
absl::StatusOr<const Command*> FindCommand(const std::vector<std::string>& arguments);

// How many words the command's name has.
size_t NameWords(const Command& command);

// The rest of the command line, after the name; endpoints from BALLAST_ENDPOINTS where no flag
// names one. INVALID_ARGUMENT names the flag or the word, and the command's arguments. With --help
// everything else may be missing.
absl::StatusOr<Options> ParseOptions(const Command& command,
                                     const std::vector<std::string>& arguments);

// "import EXPORT --as NEW": the command's name, its words and the flag that it needs.
std::string Synopsis(const Command& command);

// All commands, and one.
std::string HelpText();
std::string HelpText(const Command& command);
// Of the commands whose first word is `first`, where they have a second one, too; else empty.
std::string GroupHelpText(const std::string& first);

}  // namespace ballast::tools
