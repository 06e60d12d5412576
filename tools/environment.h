// The environment of ballastctl.
// Comes from: the process. Goes to: the commands that read a configuration.
// Thread safety: only while no thread changes the environment.
#pragma once

#include <map>
#include <string>

namespace ballast::tools {

// All variables; the first one where a name stands twice.
std::map<std::string, std::string> Environment();

}  // namespace ballast::tools
