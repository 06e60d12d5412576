// How ballastctl writes a result: as a table, as JSON or as YAML.
// Comes from: the commands. Goes to: stdout. Thread safety: pure functions, but for Print, which is
// for the main thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "tools/ctl/options.h"

namespace ballast::tools {

// Writes a result in the requested form, `json` being that of -o json and yaml. On a
// terminal a table has colours, unless NO_COLOR is set or TERM is dumb. Returns 0, or kFailure when
// stdout does not take it.
int Print(const Options& options, const std::string& table, const std::string& json);

// The same values as block style YAML. `json` is valid JSON; strings keep their JSON quotes, which
// YAML reads alike. Cost: one pass.
std::string YamlOfJson(absl::string_view json);

// `table` with bold headings, and red and green words where a state is bad or good.
std::string Coloured(const std::string& table);

}  // namespace ballast::tools
