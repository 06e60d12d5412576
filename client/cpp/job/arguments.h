// Checks the arguments of a session's calls.
// Comes from: Attach, the calls of Session. Goes to: their errors. Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ballast/client.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"
#include "common/types/enum_names.h"

namespace ballast::client {

// INVALID_ARGUMENT BAD_ARGUMENT.
absl::Status BadArgument(absl::string_view message);

// INVALID_ARGUMENT BAD_ARGUMENT for a number that the enum does not have.
template <NamedEnum E>
absl::Status CheckKnown(absl::string_view field, E value) {
  if (IsKnown(value)) return absl::OkStatus();
  return BadArgument(
      absl::StrCat(field, " is ", static_cast<int>(value), "; ", NumberedNames<E>(), " are known"));
}

// Weight memory of each tensor. Error: INVALID_ARGUMENT BAD_ARGUMENT when the counts differ, or a
// tensor with elements has no memory.
absl::StatusOr<std::vector<void*>> WeightsOf(const std::vector<TensorBuffers>& buffers,
                                             const std::vector<TensorSpec>& tensors,
                                             const std::vector<LayoutTensor>& sizes);

}  // namespace ballast::client
