#include "client/cpp/job/device_staging.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"

namespace ballast::client {
namespace {

// Kept for weights: a server's weights may come while other servers still get gradients.
constexpr size_t kBuffersForWeights = 2;
static_assert(kBuffersForWeights < DeviceStaging::kBuffersMin);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStaging>> DeviceStaging::Create(device::Device* device,
                                                                     size_t pinned_bytes,
                                                                     size_t buffer_bytes) {
  const size_t buffers = buffer_bytes == 0 ? 0 : pinned_bytes / buffer_bytes;
  if (buffers < kBuffersMin) {
    return absl::InvalidArgumentError(absl::StrCat(pinned_bytes, " bytes of pinned memory are ",
                                                   buffers, " buffers of ", buffer_bytes,
                                                   " bytes; give at least ", kBuffersMin));
  }
  std::unique_ptr<DeviceStaging> staging(new DeviceStaging(device, buffers, buffer_bytes));
  BALLAST_ASSIGN_OR_RETURN(staging->begun_, device->NewEvent());
  BALLAST_ASSIGN_OR_RETURN(staging->pipeline_,
                           device::Pipeline::Create(device, {buffers, buffer_bytes}));
  return staging;
}

absl::Status DeviceStaging::FitFrames(size_t frame_bytes) {
  if (frame_bytes <= buffer_bytes_) return absl::OkStatus();
  const size_t slab_bytes = buffers_ * buffer_bytes_;
  const size_t buffers = slab_bytes / frame_bytes;
  if (buffers < kBuffersMin) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
        absl::StrCat("the servers cut frames of ", frame_bytes, " bytes, and pinned memory of ",
                     slab_bytes, " bytes holds ", buffers, " of them; give pinned_bytes of at ",
                     "least ", kBuffersMin * frame_bytes, ", or set rounds.chunk_bytes of the ",
                     "servers to at most ", slab_bytes / kBuffersMin / 64 * 64));
  }
  BALLAST_RETURN_IF_ERROR(pipeline_->Recut(frame_bytes));
  buffers_ = buffers;
  buffer_bytes_ = frame_bytes;
  return absl::OkStatus();
}

absl::Status DeviceStaging::Begin(device::Stream framework) {
  holds_.clear();
  BALLAST_RETURN_IF_ERROR(device_->Record(framework, begun_));
  return device_->Synchronize(begun_);
}

absl::Status DeviceStaging::End(device::Stream framework) { return pipeline_->HandOver(framework); }

absl::Status DeviceStaging::EndEarly() { return pipeline_->Drain(); }

absl::StatusOr<bool> DeviceStaging::Holds(const void* tensor) {
  const auto known = holds_.find(tensor);
  if (known != holds_.end()) return known->second;
  BALLAST_ASSIGN_OR_RETURN(const bool holds, device_->Holds(tensor));
  holds_.emplace(tensor, holds);
  return holds;
}

absl::Status DeviceStaging::TakeBack() {
  std::vector<size_t> back;
  {
    MutexLock lock(&returned_->mu);
    back.swap(returned_->buffers);
  }
  for (const size_t buffer : back) BALLAST_RETURN_IF_ERROR(Drop(buffer));
  return absl::OkStatus();
}

bool DeviceStaging::HasRoom() {
  if (error_.ok()) error_ = TakeBack();
  return !error_.ok() || taken_ + kBuffersForWeights < buffers_;
}

absl::StatusOr<size_t> DeviceStaging::Stage(const std::vector<device::Piece>& pieces, DType dtype) {
  const bool room = HasRoom();
  BALLAST_RETURN_IF_ERROR(error_);
  if (!room) {
    return absl::ResourceExhaustedError(absl::StrCat(taken_, " pinned buffers hold frames"));
  }
  BALLAST_ASSIGN_OR_RETURN(const size_t buffer,
                           pipeline_->Push(begun_, {pieces, dtype, dtype, nullptr}));
  ++taken_;
  return buffer;
}

absl::StatusOr<const char*> DeviceStaging::Await(size_t buffer) {
  BALLAST_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, pipeline_->Pushed(buffer));
  return reinterpret_cast<const char*>(bytes.data());
}

std::shared_ptr<const void> DeviceStaging::Lend(size_t buffer, std::shared_ptr<const void> kept) {
  return {static_cast<const void*>(this),
          [returned = returned_, buffer, kept = std::move(kept)](const void*) {
            MutexLock lock(&returned->mu);
            returned->buffers.push_back(buffer);
          }};
}

absl::Status DeviceStaging::Drop(size_t buffer) {
  --taken_;
  return pipeline_->Release(buffer);
}

absl::StatusOr<device::Pipeline::TakenBuffer> DeviceStaging::Take() {
  BALLAST_RETURN_IF_ERROR(TakeBack());
  BALLAST_ASSIGN_OR_RETURN(const device::Pipeline::TakenBuffer taken, pipeline_->Take());
  ++taken_;
  return taken;
}

absl::Status DeviceStaging::Land(size_t buffer, const std::vector<device::Piece>& pieces,
                                 DType dtype) {
  BALLAST_RETURN_IF_ERROR(pipeline_->Pull(buffer, begun_, {pieces, dtype, dtype, nullptr}));
  --taken_;
  return absl::OkStatus();
}

}  // namespace ballast::client
