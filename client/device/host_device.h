// A device without a device: work runs at once, in the call that queues it. For tensors in host
// memory.
// Comes from: the pipelines. Goes to: the caller's memory. Thread safety: thread-compatible.
#pragma once

#include <memory>
#include <vector>

#include "client/device/device.h"

namespace ballast::device {

class HostDevice final : public Device {
 public:
  absl::StatusOr<void*> Allocate(MemoryKind kind, size_t bytes) override;
  absl::StatusOr<Stream> NewStream() override { return Stream{streams_++}; }
  absl::StatusOr<Event> NewEvent() override { return Event{events_++}; }
  absl::Status Copy(Stream stream, void* to, const void* from, size_t bytes) override;
  absl::Status Pack(Stream stream, const Packing& packing) override;
  absl::Status Unpack(Stream stream, const Packing& packing) override;
  absl::Status Measure(Stream stream, const Measurement& measurement) override;
  absl::Status Record(Stream, Event) override { return absl::OkStatus(); }
  absl::Status Wait(Stream, Event) override { return absl::OkStatus(); }
  absl::Status Keep(Stream, const void*, size_t) override { return absl::OkStatus(); }
  absl::Status Synchronize(Event) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Reached(Event) override { return true; }
  absl::StatusOr<void*> Handle(Stream) override { return nullptr; }
  absl::StatusOr<bool> Holds(const void*) override { return false; }
  absl::Status HostReads(const void*, size_t) override { return absl::OkStatus(); }
  absl::Status HostWrites(void*, size_t) override { return absl::OkStatus(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  bool pinned_ = false;
  uint32_t streams_ = 0, events_ = 0;
};

}  // namespace ballast::device
