#include "client/cpp/job/round_input.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/job/arguments.h"
#include "client/cpp/job/gpu_tensors.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/job/upload_plane.h"

namespace ballast::client {
namespace {

// Bit i, least significant first: tensor i has a source. Empty when all have.
std::string PresenceBits(const std::vector<bool>& present) {
  if (std::find(present.begin(), present.end(), false) == present.end()) return "";
  std::string bits((present.size() + 7) / 8, '\0');
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  }
  return bits;
}

absl::Status CheckBuffers(const JobView& job, const std::vector<TensorBuffers>& buffers) {
  return WeightsOf(buffers, job.spec.tensors, job.layout.tensors()).status();
}

RoundInput Lend(const JobView& job, const std::vector<TensorBuffers>& buffers) {
  RoundInput input;
  for (const TensorBuffers& tensor : buffers) {
    input.sources.push_back(static_cast<const char*>(tensor.grad));
    input.weights.push_back(tensor.weight);
    input.present.push_back(tensor.grad != nullptr);
  }
  input.begin.set_round(job.round);
  input.begin.set_layout_version(job.layout_version);
  return input;
}

absl::StatusOr<RoundInput> WithDigests(const JobView& job, RoundInput input,
                                       DeviceStaging* staging) {
  input.upload = true;
  if (job.options.init == InitMode::kBroadcast) return input;
  BALLAST_ASSIGN_OR_RETURN(const std::vector<uint32_t> digests,
                           DigestsOf(input.sources, job.layout.tensors(), staging));
  input.begin.mutable_weight_crc32c()->Assign(digests.begin(), digests.end());
  return input;
}

absl::Status CheckPlane(const JobView& job, const StateUpload& upload,
                        const std::vector<TensorBuffers>& buffers) {
  const uint32_t arrays = StateArrayCount(job.spec);
  if (upload.array >= arrays) {
    return BadArgument(absl::StrCat("state array ", upload.array, " is not known; the job has ",
                                    arrays, " state arrays"));
  }
  const UploadPlane plane = StatePlaneOf(upload.array, upload.low);
  for (size_t t = 0; t < buffers.size(); ++t) {
    if ((buffers[t].grad != nullptr) == Carries(plane, job.layout.tensors()[t].dtype)) continue;
    return BadArgument(absl::StrCat(
        "tensor \"", job.spec.tensors[t].name, "\" has ", buffers[t].grad == nullptr ? "no " : "",
        "bytes of ", UploadPlaneText(plane, StateArraysOf(job.spec)),
        "; in a low plane fp32 tensors ", "have none, and else all have"));
  }
  return absl::OkStatus();
}

absl::Status CheckSteps(const StateUpload& upload, const JobSpec& spec) {
  const size_t tensors = spec.tensors.size();
  const size_t steps = upload.tensor_step.size();
  if (steps != 0 && steps != tensors) {
    return BadArgument(absl::StrCat("got step counts of ", steps, " tensors, the job has ", tensors,
                                    "; give all or none"));
  }
  for (const uint64_t step : upload.tensor_step) {
    if (std::max(step, upload.opt_step) <= kStepCountMax) continue;
    return BadArgument(absl::StrCat("a step count is ", std::max(step, upload.opt_step),
                                    ", the limit is ", kStepCountMax));
  }
  if (upload.schedule_index.has_value() && steps == 0) {
    return BadArgument("a position of the schedule comes with step counts; give them, too");
  }
  const std::string why =
      ScheduleIndexRefusal(upload.schedule_index, spec.policy.schedule.has_value());
  return why.empty() ? absl::OkStatus() : BadArgument(absl::StrCat("an upload comes", why));
}

}  // namespace

absl::StatusOr<RoundInput> StepInput(const JobView& job, const std::vector<Hyper>& hyper,
                                     const std::vector<TensorBuffers>& buffers, double loss_scale) {
  BALLAST_RETURN_IF_ERROR(ValidateHyper(job.spec, hyper));
  const std::string why =
      LossScaleRefusal(job.spec, job.policy.state, {job.options.slot, loss_scale});
  if (!why.empty()) {
    return ReasonedError(absl::StatusCode::kFailedPrecondition, Reason::kLossScaleMismatch, why,
                         job.Fields());
  }
  BALLAST_RETURN_IF_ERROR(CheckBuffers(job, buffers));
  RoundInput input = Lend(job, buffers);
  for (const Hyper& values : hyper) {
    input.begin.add_hyper()->mutable_value()->Assign(values.begin(), values.end());
  }
  input.begin.set_presence(PresenceBits(input.present));
  input.begin.set_loss_scale(loss_scale);
  return input;
}

absl::StatusOr<std::vector<uint32_t>> GradientDigests(const std::vector<LayoutTensor>& tensors,
                                                      const std::vector<TensorBuffers>& buffers,
                                                      DeviceStaging* staging) {
  if (buffers.size() != tensors.size()) return std::vector<uint32_t>();
  std::vector<const char*> gradients;
  for (const TensorBuffers& tensor : buffers) {
    gradients.push_back(static_cast<const char*>(tensor.grad));
  }
  return DigestsOf(gradients, tensors, staging);
}

absl::StatusOr<RoundInput> UploadInput(const JobView& job,
                                       const std::vector<TensorBuffers>& buffers,
                                       DeviceStaging* staging) {
  BALLAST_RETURN_IF_ERROR(CheckBuffers(job, buffers));
  std::vector<TensorBuffers> lent = buffers;
  for (TensorBuffers& tensor : lent) tensor.grad = tensor.weight;
  RoundInput input = Lend(job, lent);
  input.begin.set_upload(true);
  return WithDigests(job, std::move(input), staging);
}

absl::StatusOr<RoundInput> StateUploadInput(const JobView& job, const StateUpload& upload,
                                            const std::vector<TensorBuffers>& buffers,
                                            DeviceStaging* staging) {
  BALLAST_RETURN_IF_ERROR(CheckBuffers(job, buffers));
  BALLAST_RETURN_IF_ERROR(CheckPlane(job, upload, buffers));
  BALLAST_RETURN_IF_ERROR(CheckSteps(upload, job.spec));
  RoundInput input = Lend(job, buffers);
  v1::RoundBegin* const begin = &input.begin;
  begin->set_plane(static_cast<v1::StatePlane>(StatePlaneOf(upload.array, upload.low)));
  begin->set_presence(PresenceBits(input.present));
  begin->mutable_tensor_step()->Assign(upload.tensor_step.begin(), upload.tensor_step.end());
  begin->set_opt_step(upload.opt_step);
  if (upload.schedule_index.has_value()) begin->set_schedule_index(*upload.schedule_index);
  return WithDigests(job, std::move(input), staging);
}

}  // namespace ballast::client
