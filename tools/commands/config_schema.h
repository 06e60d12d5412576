// The JSON Schema of ballastd's configuration file.
// Comes from: server.proto, through server/config. Goes to: `ballastctl config schema`, editors.
// Thread safety: pure function.
#pragma once

#include <string>

namespace ballast::tools {

// A JSON Schema (draft 2020-12): every field with its meaning, default and accepted texts; other
// fields are refused. Bounds with units are in the description, since a schema compares no sizes.
std::string ConfigSchema();

}  // namespace ballast::tools
