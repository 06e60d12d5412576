// Getting into a job: the specification a trainer sends, and finding the server that answers.
// Comes from: Client::Attach and Extend. Goes to: Session.
// Thread safety: pure functions, apart from the calls that AttachToHome makes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/control.pb.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"

namespace ballast::client {

// Checks everything about `options` that is not part of the job's specification.
// Errors: INVALID_ARGUMENT BAD_ARGUMENT.
absl::Status ValidateOptions(const JobOptions& options);

// Whether an attach may take a seat in a job that is there.
bool MayResume(const JobOptions& options);

// The tensors as the job knows them. Error: INVALID_ARGUMENT BAD_ARGUMENT for an unknown dtype.
absl::StatusOr<std::vector<TensorSpec>> ToTensorSpecs(const std::vector<Tensor>& tensors);

// As ValidateJobSpec, but for the durability: which levels there are is the servers' to say.
absl::Status CheckJobSpec(const JobSpec& spec);

// The valid specification of a job over `tensors`. Errors: those of ValidateJobSpec, BAD_ARGUMENT.
absl::StatusOr<JobSpec> MakeJobSpec(const JobOptions& options, const std::vector<Tensor>& tensors);

// Weight memory of each tensor. `first_tensor` is the number of the first one, for messages.
// Error: INVALID_ARGUMENT BAD_ARGUMENT when a count differs, or a tensor with elements has none.
absl::StatusOr<std::vector<void*>> WeightsOf(const std::vector<TensorBuffers>& buffers,
                                             const std::vector<TensorSpec>& tensors,
                                             const std::vector<LayoutTensor>& sizes);

// CRC32C of each tensor's memory, for InitMode::kEqual; 0 where there is none.
std::vector<uint32_t> DigestsOf(const std::vector<const char*>& values,
                                const std::vector<LayoutTensor>& sizes);
std::vector<uint32_t> DigestsOf(const std::vector<void*>& weights,
                                const std::vector<LayoutTensor>& sizes);

// Finds the job's home through any of `options.endpoints` and attaches there; waits until the whole
// world has. Servers that do not answer are tried again, in turn, until the attach timeout; when
// the attach may resume a job, so is a home that misses one of the job's servers. Errors: the
// server's, UNAVAILABLE UNREACHABLE when no server has answered in time, DEADLINE_EXCEEDED
// ATTACH_TIMEOUT, CANCELLED when should_stop said so.
absl::StatusOr<v1::AttachReply> AttachToHome(const JobOptions& options, v1::AttachRequest request);

}  // namespace ballast::client
