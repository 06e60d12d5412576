#include "client/device/pipeline.h"

#include "absl/strings/str_cat.h"
#include "client/device/left_out.h"
#include "client/device/pack.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace ballast::device {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(Device* device,
                                                           const PipelineConfig& config) {
  if (config.buffer_count == 0 || config.buffer_bytes == 0 ||
      config.buffer_bytes % kAlignment != 0 ||
      config.buffer_count > SIZE_MAX / config.buffer_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.buffer_count, " buffers of ", config.buffer_bytes,
        " bytes: there must be at least 1, and their bytes a multiple of ", kAlignment));
  }
  std::unique_ptr<Pipeline> pipeline(new Pipeline(device, config));
  absl::Status status = pipeline->MakeBuffers();
  if (!status.ok()) return status;
  return pipeline;
}

absl::Status Pipeline::MakeBuffers() {
  const size_t slab_bytes = config_.buffer_count * config_.buffer_bytes;
  BALLAST_ASSIGN_OR_RETURN(void* pinned, device_->Allocate(MemoryKind::kPinned, slab_bytes));
  BALLAST_ASSIGN_OR_RETURN(void* staging, device_->Allocate(MemoryKind::kDevice, slab_bytes));
  BALLAST_ASSIGN_OR_RETURN(kernels_, device_->NewStream());
  BALLAST_ASSIGN_OR_RETURN(up_, device_->NewStream());
  BALLAST_ASSIGN_OR_RETURN(down_, device_->NewStream());
  BALLAST_ASSIGN_OR_RETURN(handed_over_, device_->NewEvent());
  for (size_t i = 0; i < config_.buffer_count; ++i) {
    Buffer buffer{static_cast<std::byte*>(pinned) + i * config_.buffer_bytes,
                  static_cast<std::byte*>(staging) + i * config_.buffer_bytes};
    BALLAST_ASSIGN_OR_RETURN(buffer.packed, device_->NewEvent());
    BALLAST_ASSIGN_OR_RETURN(buffer.copied, device_->NewEvent());
    BALLAST_ASSIGN_OR_RETURN(buffer.landed, device_->NewEvent());
    BALLAST_ASSIGN_OR_RETURN(buffer.unpacked, device_->NewEvent());
    buffers_.push_back(buffer);
  }
  return absl::OkStatus();
}

absl::Status Pipeline::Recut(size_t buffer_bytes) {
  const size_t slab_bytes = config_.buffer_count * config_.buffer_bytes;
  if (buffer_bytes < config_.buffer_bytes || buffer_bytes % kAlignment != 0 ||
      buffer_bytes > slab_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffers of ", buffer_bytes, " bytes in place of ", config_.buffer_count, " of ",
        config_.buffer_bytes, ": give a multiple of ", kAlignment, " between the two and all"));
  }
  for (const Buffer& buffer : buffers_) {
    BALLAST_CHECK(!buffer.taken);
    if (BALLAST_LEFT_OUT(kRecutSync)) continue;
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(buffer.copied));
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(buffer.landed));
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(buffer.unpacked));
  }
  std::byte* const pinned = buffers_.front().pinned;
  std::byte* const staging = buffers_.front().staging;
  config_ = {slab_bytes / buffer_bytes, buffer_bytes};
  buffers_.resize(config_.buffer_count);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].pinned = pinned + i * buffer_bytes;
    buffers_[i].staging = staging + i * buffer_bytes;
  }
  next_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<size_t> Pipeline::FreeBuffer() const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const size_t buffer = (next_ + i) % buffers_.size();
    if (!buffers_[buffer].taken || BALLAST_LEFT_OUT(kBufferHeld)) return buffer;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("all ", buffers_.size(), " pinned buffers are taken; release one"));
}

absl::StatusOr<size_t> Pipeline::PackedBytes(const Packing& packing) const {
  BALLAST_RETURN_IF_ERROR(CheckPacking(packing));
  const size_t bytes = ElementCount(packing) * DTypeBytes(packing.packed_dtype);
  if (bytes <= config_.buffer_bytes) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes are above the buffer's ",
                                                 config_.buffer_bytes, "; move fewer elements"));
}

absl::StatusOr<size_t> Pipeline::Push(Event ready, Packing packing) {
  BALLAST_ASSIGN_OR_RETURN(const size_t bytes, PackedBytes(packing));
  BALLAST_ASSIGN_OR_RETURN(const size_t number, FreeBuffer());
  Buffer& buffer = buffers_[number];
  packing.packed = buffer.staging;
  buffer.bytes = bytes;
  buffer.taken = buffer.unread = true;
  next_ = (number + 1) % buffers_.size();
  BALLAST_RETURN_IF_ERROR(PackInto(buffer, ready, packing));
  BALLAST_RETURN_IF_ERROR(CopyOut(buffer));
  return number;
}

// The buffer's earlier work needs no wait here: an unpack is on the same stream, and Release waits
// for a copy.
absl::Status Pipeline::PackInto(const Buffer& buffer, Event ready, const Packing& packing) {
  if (!BALLAST_LEFT_OUT(kGradientReadyWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(kernels_, ready));
  }
  BALLAST_RETURN_IF_ERROR(device_->Pack(kernels_, packing));
  if (!BALLAST_LEFT_OUT(kPackedRecord)) {
    BALLAST_RETURN_IF_ERROR(device_->Record(kernels_, buffer.packed));
  }
  if (BALLAST_LEFT_OUT(kKeepGradient)) return absl::OkStatus();
  return Keep(packing);
}

absl::Status Pipeline::CopyOut(const Buffer& buffer) {
  if (!BALLAST_LEFT_OUT(kPackedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(up_, buffer.packed));
  }
  BALLAST_RETURN_IF_ERROR(device_->Copy(up_, buffer.pinned, buffer.staging, buffer.bytes));
  if (BALLAST_LEFT_OUT(kCopiedRecord)) return absl::OkStatus();
  return device_->Record(up_, buffer.copied);
}

absl::StatusOr<std::span<const std::byte>> Pipeline::Pushed(size_t number) {
  Buffer& buffer = buffers_.at(number);
  BALLAST_CHECK(buffer.taken);
  if (!BALLAST_LEFT_OUT(kCopiedSync)) {
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(buffer.copied));
  }
  buffer.unread = false;
  BALLAST_RETURN_IF_ERROR(device_->HostReads(buffer.pinned, buffer.bytes));
  return std::span<const std::byte>(buffer.pinned, buffer.bytes);
}

absl::Status Pipeline::Release(size_t number) {
  Buffer& buffer = buffers_.at(number);
  BALLAST_CHECK(buffer.taken);
  if (buffer.unread && !BALLAST_LEFT_OUT(kAbandonedSync)) {
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(buffer.copied));
  }
  buffer.taken = buffer.unread = false;
  return absl::OkStatus();
}

absl::StatusOr<Pipeline::TakenBuffer> Pipeline::Take() {
  BALLAST_ASSIGN_OR_RETURN(const size_t number, FreeBuffer());
  Buffer& buffer = buffers_[number];
  if (!BALLAST_LEFT_OUT(kLandedSync)) {
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(buffer.landed));
  }
  BALLAST_RETURN_IF_ERROR(device_->HostWrites(buffer.pinned, config_.buffer_bytes));
  buffer.taken = true;
  next_ = (number + 1) % buffers_.size();
  return TakenBuffer{number, {buffer.pinned, config_.buffer_bytes}};
}

absl::Status Pipeline::Pull(size_t number, Event unused, Packing packing) {
  Buffer& buffer = buffers_.at(number);
  BALLAST_CHECK(buffer.taken);
  BALLAST_ASSIGN_OR_RETURN(const size_t bytes, PackedBytes(packing));
  packing.packed = buffer.staging;
  BALLAST_RETURN_IF_ERROR(CopyIn(buffer, bytes));
  BALLAST_RETURN_IF_ERROR(UnpackFrom(buffer, unused, packing));
  buffer.taken = false;
  return absl::OkStatus();
}

absl::Status Pipeline::CopyIn(const Buffer& buffer, size_t bytes) {
  if (!BALLAST_LEFT_OUT(kUnpackedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(down_, buffer.unpacked));
  }
  BALLAST_RETURN_IF_ERROR(device_->Copy(down_, buffer.staging, buffer.pinned, bytes));
  if (BALLAST_LEFT_OUT(kLandedRecord)) return absl::OkStatus();
  return device_->Record(down_, buffer.landed);
}

absl::Status Pipeline::UnpackFrom(const Buffer& buffer, Event unused, const Packing& packing) {
  if (!BALLAST_LEFT_OUT(kLandedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(kernels_, buffer.landed));
  }
  if (!BALLAST_LEFT_OUT(kWeightsUnusedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(kernels_, unused));
  }
  BALLAST_RETURN_IF_ERROR(device_->Unpack(kernels_, packing));
  if (!BALLAST_LEFT_OUT(kUnpackedRecord)) {
    BALLAST_RETURN_IF_ERROR(device_->Record(kernels_, buffer.unpacked));
  }
  if (BALLAST_LEFT_OUT(kKeepWeights)) return absl::OkStatus();
  return Keep(packing);
}

absl::Status Pipeline::Keep(const Packing& packing) {
  const size_t element_bytes = DTypeBytes(packing.tensor_dtype);
  for (const Piece& piece : packing.pieces) {
    BALLAST_RETURN_IF_ERROR(device_->Keep(kernels_, piece.data, piece.count * element_bytes));
  }
  return absl::OkStatus();
}

absl::Status Pipeline::HandOver(Stream stream) {
  if (!BALLAST_LEFT_OUT(kHandOverRecord)) {
    BALLAST_RETURN_IF_ERROR(device_->Record(kernels_, handed_over_));
  }
  if (BALLAST_LEFT_OUT(kHandOverWait)) return absl::OkStatus();
  return device_->Wait(stream, handed_over_);
}

absl::Status Pipeline::Drain() {
  if (!BALLAST_LEFT_OUT(kDrainRecord)) {
    BALLAST_RETURN_IF_ERROR(device_->Record(kernels_, handed_over_));
  }
  if (BALLAST_LEFT_OUT(kDrainSync)) return absl::OkStatus();
  return device_->Synchronize(handed_over_);
}

}  // namespace ballast::device
