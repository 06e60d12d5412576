// Rules for the names of new tensors. Jobs of earlier versions may have other names, and are read
// as they are: ValidateJobSpec is for both. Comes from: the home, when it makes or grows a job.
// Goes to: nothing. Thread safety: pure function.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "common/job/job_spec.h"

namespace ballast {

// INVALID_ARGUMENT (reason BAD_SPEC) naming the first of `tensors` whose name, or that of an alias,
// holds a control character of C1 (U+0080 to U+009F), which a terminal may obey. Names are UTF-8.
absl::Status CheckNewNames(std::span<const TensorSpec> tensors);

}  // namespace ballast
