#include "client/device/host_device.h"

#include <cstring>

#include "client/device/pack.h"

namespace ballast::device {

absl::StatusOr<void*> HostDevice::Allocate(MemoryKind kind, size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("0 bytes of memory; ask for at least 1");
  if (kind == MemoryKind::kPinned) {
    if (pinned_) {
      return absl::FailedPreconditionError("the pinned slab exists; cut all buffers from it");
    }
    pinned_ = true;
  }
  memory_.push_back(std::make_unique<std::byte[]>(bytes));
  return memory_.back().get();
}

absl::Status HostDevice::Copy(Stream, void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status HostDevice::Pack(Stream, const Packing& packing) {
  absl::Status status = CheckPacking(packing);
  if (status.ok()) PackOnHost(packing);
  return status;
}

absl::Status HostDevice::Unpack(Stream, const Packing& packing) {
  absl::Status status = CheckPacking(packing);
  if (status.ok()) UnpackOnHost(packing);
  return status;
}

absl::Status HostDevice::Measure(Stream, const Measurement& measurement) {
  absl::Status status = CheckMeasurement(measurement);
  if (status.ok()) MeasureOnHost(measurement);
  return status;
}

}  // namespace ballast::device
