// Shows configuration to people: --print-config and docs/config.md.
// Comes from: server main, tools/config_reference. Goes to: fields. Thread safety: pure functions.
#pragma once

#include <string>

#include "server/config/load.h"

namespace ballast::config {

// The effective configuration as YAML, every field with the origin of its value as a comment, and
// warnings as comments at the end. Load() of this text gives an equal configuration.
std::string Print(const LoadedConfig& loaded);

// The reference of all fields as Markdown: default, range, variable and meaning, section by
// section, generated from server.proto.
std::string Reference();

}  // namespace ballast::config
