// Client::Attach: validates, finds the job's home, and opens the session.
#include "ballast/client.h"

#include <random>
#include <utility>

#include "client/cpp/attach/connecting.h"
#include "client/cpp/attach/grpc_connection.h"
#include "client/cpp/attach/home_search.h"
#include "client/cpp/job/arguments.h"
#include "client/cpp/job/attach.h"
#include "client/cpp/job/gpu_tensors.h"
#include "client/cpp/session/session.h"
#include "client/cpp/transport/grpc_transport.h"
#include "common/base/status_macros.h"
#include "proto/convert/channel.h"
#include "proto/convert/job_convert.h"

namespace ballast::client {
namespace {

// New for every attach: tells this process from an earlier one in the same seat.
uint64_t RandomIncarnation() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

absl::StatusOr<v1::AttachRequest> MakeAttachRequest(const JobOptions& options,
                                                    const AttachedJob& attached,
                                                    const std::vector<void*>& weights,
                                                    DeviceStaging* staging) {
  v1::AttachRequest request;
  *request.mutable_protocol() = OwnProtocolRange();
  ToProto(attached.spec, request.mutable_spec());
  request.set_slot(options.slot);
  request.set_incarnation(attached.incarnation);
  request.set_min_world(options.min_world);
  request.set_resume(MayResume(options) ? static_cast<v1::Resume>(options.resume)
                                        : v1::RESUME_NEVER);
  const bool equal = options.init == InitMode::kEqual;
  request.set_init(equal ? v1::INIT_MODE_EQUAL : v1::INIT_MODE_BROADCAST);
  if (equal) {
    BALLAST_ASSIGN_OR_RETURN(const std::vector<uint32_t> digests,
                             DigestsOf(weights, attached.layout.tensors(), staging));
    request.mutable_tensor_crc32c()->Assign(digests.begin(), digests.end());
  }
  return request;
}

}  // namespace

void DisableLockOrderChecks() { ballast::DisableLockOrderChecks(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Attach(const JobOptions& options,
                                                       const std::vector<Tensor>& tensors,
                                                       const std::vector<TensorBuffers>& buffers,
                                                       const std::optional<Gpu>& gpu_options) {
  BALLAST_RETURN_IF_ERROR(ValidateOptions(options));
  BALLAST_ASSIGN_OR_RETURN(const std::shared_ptr<ChannelFactory> channels,
                           OpenSecurity(options.security));
  AttachedJob attached;
  BALLAST_ASSIGN_OR_RETURN(attached.spec, MakeJobSpec(options, tensors));
  BALLAST_ASSIGN_OR_RETURN(
      attached.layout, Layout::Build(LayoutTensors(attached.spec.tensors),
                                     attached.spec.tile_elements, attached.spec.extent_elements));
  const std::vector<LayoutTensor>& sizes = attached.layout.tensors();
  BALLAST_ASSIGN_OR_RETURN(const std::vector<void*> weights,
                           WeightsOf(buffers, attached.spec.tensors, sizes));
  attached.incarnation = RandomIncarnation();
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<GpuTensors> gpu, GpuTensors::Open(gpu_options));
  if (gpu != nullptr) BALLAST_RETURN_IF_ERROR(gpu->Begin());

  BALLAST_ASSIGN_OR_RETURN(
      v1::AttachRequest request,
      MakeAttachRequest(options, attached, weights, gpu != nullptr ? gpu->staging() : nullptr));
  BALLAST_ASSIGN_OR_RETURN(
      attached.reply,
      AttachToHome(options, GrpcHomeSearch(channels, options.time_scale), std::move(request)));
  const auto make_transport = [&options, &channels](Mutex* mu) {
    return std::make_unique<GrpcTransport>(mu, channels, options.time_scale);
  };
  BALLAST_ASSIGN_OR_RETURN(
      std::unique_ptr<Session> session,
      Session::Open(options, attached, make_transport, weights, std::move(gpu)));
  return std::unique_ptr<Client>(std::move(session));
}

}  // namespace ballast::client
