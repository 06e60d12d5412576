// Checks the arguments of Attach and Extend, and turns them into the job's specification. Comes
// from: Client::Attach, Session::Extend. Goes to: the home, SessionCore.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "common/job/job_spec.h"
#include "common/tensor/layout.h"

namespace ballast::client {

// Checks everything about `options` that is not part of the job's specification.
// Errors: INVALID_ARGUMENT BAD_ARGUMENT.
absl::Status ValidateOptions(const JobOptions& options);

// Whether an attach may take a seat in an existing job.
bool MayResume(const JobOptions& options);

// The tensors as the job knows them. Error: INVALID_ARGUMENT BAD_ARGUMENT for an unknown dtype.
absl::StatusOr<std::vector<TensorSpec>> ToTensorSpecs(const std::vector<Tensor>& tensors);

// As ValidateJobSpec, without the durability: the servers know which levels they have.
absl::Status CheckJobSpec(const JobSpec& spec);

// The valid specification of a job over `tensors`. Errors: those of ValidateJobSpec, BAD_ARGUMENT.
absl::StatusOr<JobSpec> MakeJobSpec(const JobOptions& options, const std::vector<Tensor>& tensors);

}  // namespace ballast::client
