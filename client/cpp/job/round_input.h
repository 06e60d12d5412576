// A caller's checked input to one round, with the RoundBegin that describes it.
// Comes from: Client::BeginStep, BeginUpload, BeginStateUpload. Goes to: SessionCore::BeginRound.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "ballast/v1/data.pb.h"
#include "client/cpp/job/device_staging.h"
#include "client/cpp/job/job_view.h"

namespace ballast::client {

// Memory per tensor of the job. The caller owns it and keeps it until the round has ended.
struct RoundInput {
  bool upload = false;               // the lead trainer uploads `sources`
  uint32_t sums_of = 0;              // `sources` hold sums over this epoch's members; 0: no sums
  std::vector<const char*> sources;  // gradients, or uploads; null where there is none
  std::vector<void*> weights;        // where the round's weights land
  std::vector<bool> present;         // has a source
  v1::RoundBegin begin;              // without the user state
  std::string user_state;            // the home gets it with the round
};

// Of gradients of a loss multiplied by `loss_scale`; 0: not given. Errors: INVALID_ARGUMENT
// BAD_HYPERPARAM or BAD_ARGUMENT; FAILED_PRECONDITION LOSS_SCALE_MISMATCH.
absl::StatusOr<RoundInput> StepInput(const JobView& job, const std::vector<Hyper>& hyper,
                                     const std::vector<TensorBuffers>& buffers,
                                     double loss_scale = 0);
// CRC32C of each gradient, 0 where there is none, for JobView::ComparesGradients; empty where the
// buffers are not those of `tensors`. It reads all gradients, so the caller holds no lock.
// `staging`: of the tensors on a device, or null. Error: the device's.
absl::StatusOr<std::vector<uint32_t>> GradientDigests(const std::vector<LayoutTensor>& tensors,
                                                      const std::vector<TensorBuffers>& buffers,
                                                      DeviceStaging* staging);
// Of the weights at `buffers[i].weight`. Errors: INVALID_ARGUMENT BAD_ARGUMENT; the device's.
absl::StatusOr<RoundInput> UploadInput(const JobView& job,
                                       const std::vector<TensorBuffers>& buffers,
                                       DeviceStaging* staging);
// Of one plane at `buffers[i].grad`. Error: INVALID_ARGUMENT BAD_ARGUMENT.
absl::StatusOr<RoundInput> StateUploadInput(const JobView& job, const StateUpload& upload,
                                            const std::vector<TensorBuffers>& buffers,
                                            DeviceStaging* staging);

}  // namespace ballast::client
