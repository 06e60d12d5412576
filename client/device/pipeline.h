// Gradients from tensors into pinned buffers, weights from pinned buffers into tensors.
// Comes from: tensors on a device. Goes to: the session, which reads and writes buffers on the
// host. docs/gpu.md shows the streams and says which part owns a buffer until when. Thread safety:
// thread-compatible.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/device.h"

namespace ballast::device {

struct PipelineConfig {
  size_t buffer_count = 0;  // at least 1
  size_t buffer_bytes = 0;  // a multiple of 64: the most that one Push or Pull moves
};

class Pipeline {
 public:
  // Takes all memory, streams and events that the pipeline ever needs; `device` outlives it.
  // INVALID_ARGUMENT when the configuration is out of bounds; else the device's error.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Create(Device* device,
                                                          const PipelineConfig& config);

  // Cuts the memory of all buffers into fewer ones of `buffer_bytes`, without new memory. No buffer
  // may be in use. Waits for queued work. INVALID_ARGUMENT, which changes nothing: `buffer_bytes`
  // is no multiple of 64, less than before, or more than all the memory.
  absl::Status Recut(size_t buffer_bytes);

  // Begins to bring gradients into a buffer, and returns its number. `ready` is recorded on the
  // stream that forms the gradients; `packing.packed` is not read. RESOURCE_EXHAUSTED when all
  // buffers are taken: release one. INVALID_ARGUMENT when the elements exceed a buffer.
  // A device's error is final for the pipeline: the buffer stays taken, since work on it may be
  // under way.
  absl::StatusOr<size_t> Push(Event ready, Packing packing);

  // Waits until the buffer's gradients have arrived. The bytes are the caller's until Release.
  absl::StatusOr<std::span<const std::byte>> Pushed(size_t buffer);

  // Gives a buffer of Push back, read or not.
  absl::Status Release(size_t buffer);

  // A buffer for weights, whose bytes the caller fills before Pull. RESOURCE_EXHAUSTED as Push.
  struct TakenBuffer {
    size_t buffer;
    std::span<std::byte> bytes;
  };
  absl::StatusOr<TakenBuffer> Take();

  // Begins to bring the buffer's weights into tensors, and gives the buffer back. `unused` is
  // recorded on the stream that reads the old weights, after that. An error leaves the buffer
  // taken.
  absl::Status Pull(size_t buffer, Event unused, Packing packing);

  // Makes `stream` wait for all weights of earlier calls of Pull.
  absl::Status HandOver(Stream stream);

  // Blocks the host until no pack or unpack of earlier calls is under way, for a caller that ends
  // early and gives the tensors' memory back.
  absl::Status Drain();

 private:
  struct Buffer {
    std::byte* pinned;
    std::byte* staging;  // on the device
    Event packed;        // staging holds gradients
    Event copied;        // pinned holds gradients
    Event landed;        // staging holds weights
    Event unpacked;      // staging is read
    size_t bytes = 0;
    bool taken = false;
    bool unread = false;  // a copy into `pinned` may still run
  };

  Pipeline(Device* device, const PipelineConfig& config) : device_(device), config_(config) {}
  absl::Status MakeBuffers();
  absl::StatusOr<size_t> FreeBuffer() const;
  absl::StatusOr<size_t> PackedBytes(const Packing& packing) const;
  absl::Status PackInto(const Buffer& buffer, Event ready, const Packing& packing);
  absl::Status CopyOut(const Buffer& buffer);
  absl::Status CopyIn(const Buffer& buffer, size_t bytes);
  absl::Status UnpackFrom(const Buffer& buffer, Event unused, const Packing& packing);
  absl::Status Keep(const Packing& packing);

  Device* const device_;
  PipelineConfig config_;
  Stream kernels_{}, up_{}, down_{};
  Event handed_over_{};
  std::vector<Buffer> buffers_;  // their memory is one piece, from the first one's on
  size_t next_ = 0;              // where the search for a free buffer begins
};

}  // namespace ballast::device
