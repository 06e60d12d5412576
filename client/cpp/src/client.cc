// Client::Attach: validates, finds the job's home, and opens the session.
#include "ballast/client.h"

#include <random>
#include <utility>

#include "client/cpp/src/attach.h"
#include "client/cpp/src/session.h"
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

}  // namespace

void DisableLockOrderChecks() { ballast::DisableLockOrderChecks(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Attach(const JobOptions& options,
                                                       const std::vector<Tensor>& tensors,
                                                       const std::vector<TensorBuffers>& buffers) {
  BALLAST_RETURN_IF_ERROR(ValidateOptions(options));
  Session::Seat seat;
  BALLAST_ASSIGN_OR_RETURN(seat.spec, MakeJobSpec(options, tensors));
  BALLAST_ASSIGN_OR_RETURN(seat.layout,
                           Layout::Build(LayoutTensors(seat.spec.tensors), seat.spec.tile_elements,
                                         seat.spec.extent_elements));
  const std::vector<LayoutTensor>& sizes = seat.layout.tensors();
  BALLAST_ASSIGN_OR_RETURN(const std::vector<void*> weights,
                           WeightsOf(buffers, seat.spec.tensors, sizes));
  seat.incarnation = RandomIncarnation();

  v1::AttachRequest request;
  *request.mutable_protocol() = OwnProtocolRange();
  ToProto(seat.spec, request.mutable_spec());
  request.set_slot(options.slot);
  request.set_incarnation(seat.incarnation);
  request.set_min_world(options.min_world);
  request.set_resume(MayResume(options) ? static_cast<v1::Resume>(options.resume)
                                        : v1::RESUME_NEVER);
  const bool equal = options.init == InitMode::kEqual;
  request.set_init(equal ? v1::INIT_MODE_EQUAL : v1::INIT_MODE_BROADCAST);
  if (equal) {
    for (const uint32_t digest : DigestsOf(weights, sizes)) request.add_tensor_crc32c(digest);
  }
  BALLAST_ASSIGN_OR_RETURN(seat.reply, AttachToHome(options, std::move(request)));
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                           Session::Open(options, std::move(seat), weights));
  return std::unique_ptr<Client>(std::move(session));
}

}  // namespace ballast::client
