// What a BALLAST_* variable is that sets no field of the configuration: a client's, a service link
// of Kubernetes or Docker, a misspelt field, or an unknown one.
// Comes from: load. Goes to: the names of fields. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace ballast::config {

struct VariableVerdict {
  enum class Kind {
    kForeign,   // another program's, to be ignored without a word
    kUnknown,   // of no known program and like no field: ignored, with a warning
    kMisspelt,  // meant for ballastd, as far as one can tell: an error
  };
  Kind kind = Kind::kForeign;
  std::string message;  // what to say behind "NAME: "; empty for kForeign
};

// Judges a variable that is none of Leaves(). Misspelt is a name
//   - under the prefix of a section (BALLAST_LISTEN_*) that the section does not have,
//   - within a third of its length of a field, or of BALLAST_TIME_SCALE,
//   - that is a field of several words without its section (BALLAST_DRAM_BUDGET).
// `value` tells a service link (BALLAST_LISTEN_PORT=tcp://10.0.0.1:7000) from a port that
// was meant as a setting.
VariableVerdict JudgeVariable(absl::string_view name, absl::string_view value);

}  // namespace ballast::config
