// The command line and environment of ballastd.
// Comes from: main. Goes to: server/config (as flags and variables). Thread safety: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/load.h"

namespace ballast::server {

struct CommandLine {
  config::LoadOptions load;
  bool help = false;
  bool version = false;
  bool check_config = false;
  bool print_config = false;
  bool list_failpoints = false;
  bool dev = false;
  std::string ready_file;
  double time_scale = 1;
  int pause_ms = 0;  // above 0: waits for that time and exits
};

extern const char kUsage[];

// Parses the arguments after the program's name and the BALLAST_* variables of `environment`.
// Errors: INVALID_ARGUMENT naming the flag, with a suggestion if a similar one exists.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::map<std::string, std::string>& environment);

}  // namespace ballast::server
