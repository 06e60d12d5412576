#include "client/device/pipeline.h"

#include "absl/strings/str_cat.h"
#include "client/device/left_out.h"
#include "client/device/pack.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace ballast::device {

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(Device* device,
                                                           const PipelineConfig& config) {
  constexpr size_t kAlignment = 64;
  if (config.slot_count == 0 || config.slot_bytes == 0 || config.slot_bytes % kAlignment != 0 ||
      config.slot_count > SIZE_MAX / config.slot_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.slot_count, " slots of ", config.slot_bytes,
        " bytes: there must be at least 1, and their bytes a multiple of ", kAlignment));
  }
  std::unique_ptr<Pipeline> pipeline(new Pipeline(device, config));
  absl::Status status = pipeline->MakeSlots();
  if (!status.ok()) return status;
  return pipeline;
}

absl::Status Pipeline::MakeSlots() {
  const size_t slab_bytes = config_.slot_count * config_.slot_bytes;
  BALLAST_ASSIGN_OR_RETURN(void* pinned, device_->Allocate(MemoryKind::kPinned, slab_bytes));
  BALLAST_ASSIGN_OR_RETURN(void* staging, device_->Allocate(MemoryKind::kDevice, slab_bytes));
  BALLAST_ASSIGN_OR_RETURN(kernels_, device_->NewStream());
  BALLAST_ASSIGN_OR_RETURN(copies_, device_->NewStream());
  BALLAST_ASSIGN_OR_RETURN(handed_over_, device_->NewEvent());
  for (size_t i = 0; i < config_.slot_count; ++i) {
    Slot slot{static_cast<std::byte*>(pinned) + i * config_.slot_bytes,
              static_cast<std::byte*>(staging) + i * config_.slot_bytes};
    BALLAST_ASSIGN_OR_RETURN(slot.packed, device_->NewEvent());
    BALLAST_ASSIGN_OR_RETURN(slot.copied, device_->NewEvent());
    BALLAST_ASSIGN_OR_RETURN(slot.landed, device_->NewEvent());
    BALLAST_ASSIGN_OR_RETURN(slot.unpacked, device_->NewEvent());
    slots_.push_back(slot);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Pipeline::FreeSlot() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const size_t slot = (next_ + i) % slots_.size();
    if (!slots_[slot].taken || BALLAST_LEFT_OUT(kSlotHeld)) return slot;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("all ", slots_.size(), " pinned slots are taken; release one"));
}

absl::StatusOr<size_t> Pipeline::PackedBytes(const Packing& packing) const {
  BALLAST_RETURN_IF_ERROR(CheckPacking(packing));
  const size_t bytes = ElementCount(packing) * DTypeBytes(packing.packed_dtype);
  if (bytes <= config_.slot_bytes) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes are above the slot's ",
                                                 config_.slot_bytes, "; move fewer elements"));
}

absl::StatusOr<size_t> Pipeline::Push(Event ready, Packing packing) {
  BALLAST_ASSIGN_OR_RETURN(const size_t bytes, PackedBytes(packing));
  BALLAST_ASSIGN_OR_RETURN(const size_t number, FreeSlot());
  Slot& slot = slots_[number];
  packing.packed = slot.staging;
  slot.bytes = bytes;
  slot.taken = slot.unread = true;
  next_ = (number + 1) % slots_.size();
  BALLAST_RETURN_IF_ERROR(PackInto(slot, ready, packing));
  BALLAST_RETURN_IF_ERROR(CopyOut(slot));
  return number;
}

// The slot's earlier work needs no wait here: an unpack is on the same stream, and Release waits
// for a copy.
absl::Status Pipeline::PackInto(const Slot& slot, Event ready, const Packing& packing) {
  if (!BALLAST_LEFT_OUT(kGradientReadyWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(kernels_, ready));
  }
  BALLAST_RETURN_IF_ERROR(device_->Pack(kernels_, packing));
  if (!BALLAST_LEFT_OUT(kPackedRecord)) {
    BALLAST_RETURN_IF_ERROR(device_->Record(kernels_, slot.packed));
  }
  if (BALLAST_LEFT_OUT(kKeepGradient)) return absl::OkStatus();
  return Keep(packing);
}

absl::Status Pipeline::CopyOut(const Slot& slot) {
  if (!BALLAST_LEFT_OUT(kPackedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(copies_, slot.packed));
  }
  BALLAST_RETURN_IF_ERROR(device_->Copy(copies_, slot.pinned, slot.staging, slot.bytes));
  if (BALLAST_LEFT_OUT(kCopiedRecord)) return absl::OkStatus();
  return device_->Record(copies_, slot.copied);
}

absl::StatusOr<std::span<const std::byte>> Pipeline::Pushed(size_t number) {
  Slot& slot = slots_.at(number);
  BALLAST_CHECK(slot.taken);
  if (!BALLAST_LEFT_OUT(kCopiedSync)) {
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(slot.copied));
  }
  slot.unread = false;
  BALLAST_RETURN_IF_ERROR(device_->HostReads(slot.pinned, slot.bytes));
  return std::span<const std::byte>(slot.pinned, slot.bytes);
}

absl::Status Pipeline::Release(size_t number) {
  Slot& slot = slots_.at(number);
  BALLAST_CHECK(slot.taken);
  if (slot.unread && !BALLAST_LEFT_OUT(kAbandonedSync)) {
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(slot.copied));
  }
  slot.taken = slot.unread = false;
  return absl::OkStatus();
}

absl::StatusOr<Pipeline::Room> Pipeline::Take() {
  BALLAST_ASSIGN_OR_RETURN(const size_t number, FreeSlot());
  Slot& slot = slots_[number];
  if (!BALLAST_LEFT_OUT(kLandedSync)) {
    BALLAST_RETURN_IF_ERROR(device_->Synchronize(slot.landed));
  }
  BALLAST_RETURN_IF_ERROR(device_->HostWrites(slot.pinned, config_.slot_bytes));
  slot.taken = true;
  next_ = (number + 1) % slots_.size();
  return Room{number, {slot.pinned, config_.slot_bytes}};
}

absl::Status Pipeline::Pull(size_t number, Event unused, Packing packing) {
  Slot& slot = slots_.at(number);
  BALLAST_CHECK(slot.taken);
  BALLAST_ASSIGN_OR_RETURN(const size_t bytes, PackedBytes(packing));
  packing.packed = slot.staging;
  BALLAST_RETURN_IF_ERROR(CopyIn(slot, bytes));
  BALLAST_RETURN_IF_ERROR(UnpackFrom(slot, unused, packing));
  slot.taken = false;
  return absl::OkStatus();
}

absl::Status Pipeline::CopyIn(const Slot& slot, size_t bytes) {
  if (!BALLAST_LEFT_OUT(kUnpackedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(copies_, slot.unpacked));
  }
  BALLAST_RETURN_IF_ERROR(device_->Copy(copies_, slot.staging, slot.pinned, bytes));
  if (BALLAST_LEFT_OUT(kLandedRecord)) return absl::OkStatus();
  return device_->Record(copies_, slot.landed);
}

absl::Status Pipeline::UnpackFrom(const Slot& slot, Event unused, const Packing& packing) {
  if (!BALLAST_LEFT_OUT(kLandedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(kernels_, slot.landed));
  }
  if (!BALLAST_LEFT_OUT(kWeightsUnusedWait)) {
    BALLAST_RETURN_IF_ERROR(device_->Wait(kernels_, unused));
  }
  BALLAST_RETURN_IF_ERROR(device_->Unpack(kernels_, packing));
  if (!BALLAST_LEFT_OUT(kUnpackedRecord)) {
    BALLAST_RETURN_IF_ERROR(device_->Record(kernels_, slot.unpacked));
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

}  // namespace ballast::device
