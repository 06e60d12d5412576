// Checks the arguments of a session's calls.
// Comes from: Attach, the calls of Session. Goes to: their errors. Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/client.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"

namespace ballast::client {

// INVALID_ARGUMENT BAD_ARGUMENT.
absl::Status BadArgument(absl::string_view message);

// Weight memory of each tensor. Error: INVALID_ARGUMENT BAD_ARGUMENT when the counts differ, or a
// tensor with elements has no memory.
absl::StatusOr<std::vector<void*>> WeightsOf(const std::vector<TensorBuffers>& buffers,
                                             const std::vector<TensorSpec>& tensors,
                                             const std::vector<LayoutTensor>& sizes);

}  // namespace ballast::client
