// The environment of a process, and the kind of a BALLAST_* variable that sets no field of the
// configuration: a client's, a service link of Kubernetes or Docker, a misspelt field, or an
// unknown one.
// Comes from: the process; load. Goes to: ballastd, ballastctl; the names of fields.
// Thread safety: pure functions but ProcessEnvironment, during which no thread changes a variable.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace ballast::config {

// All variables of this process. Of a repeated name the first one counts, as for getenv.
std::map<std::string, std::string> ProcessEnvironment();

struct VariableVerdict {
  enum class Kind {
    kForeign,   // another program's, to be ignored without a word
    kUnknown,   // of no known program and like no field: ignored, with a warning
    kMisspelt,  // meant for ballastd, as far as one can tell: an error
  };
  Kind kind = Kind::kForeign;
  std::string message;  // text after "NAME: "; empty for kForeign
};

// Judges a variable outside Leaves(). Misspelt is a name
//   - under the prefix of a section (BALLAST_LISTEN_*) that the section does not have,
//   - within a third of its length of a field, or of BALLAST_TIME_SCALE,
//   - that is a field of several words without its section (BALLAST_DRAM_BUDGET).
// `value` tells a service link (BALLAST_LISTEN_PORT=tcp://10.0.0.1:7000) from a port meant as a
// setting.
VariableVerdict JudgeVariable(absl::string_view name, absl::string_view value);

}  // namespace ballast::config
