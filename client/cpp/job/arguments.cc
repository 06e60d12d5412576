#include "client/cpp/job/arguments.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace ballast::client {

absl::Status BadArgument(absl::string_view message) {
  return ReasonedError(absl::StatusCode::kInvalidArgument, Reason::kBadArgument, message);
}

absl::StatusOr<std::vector<void*>> WeightsOf(const std::vector<TensorBuffers>& buffers,
                                             const std::vector<TensorSpec>& tensors,
                                             const std::vector<LayoutTensor>& sizes) {
  if (buffers.size() != tensors.size()) {
    return BadArgument(
        absl::StrCat("got buffers for ", buffers.size(), " tensors, the job has ", tensors.size()));
  }
  std::vector<void*> weights(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    weights[i] = buffers[i].weight;
    if (weights[i] == nullptr && sizes[i].elements > 0) {
      return BadArgument(absl::StrCat("tensor \"", tensors[i].name, "\" has no weight memory"));
    }
  }
  return weights;
}

}  // namespace ballast::client
