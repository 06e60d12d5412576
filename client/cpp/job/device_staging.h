// The tensors in a device's memory, as frames need them. Outgoing bytes are packed and copied into
// pinned buffers ahead of their frame; incoming bytes land in a pinned buffer, are checked there,
// and are copied and unpacked from it.
// Comes from: FrameIo; Session, around each activity. Goes to: device::Pipeline.
// Waits: Begin for the framework's stream, on the caller's thread; all else at most for copies of
// the slab. Thread safety: under the session's lock, but for Begin and End, which run while nothing
// is under way, and for the owners of Lend, which any thread may drop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/device.h"
#include "client/device/pipeline.h"
#include "common/base/sync.h"
#include "common/tensor/dtype.h"

namespace ballast::client {

class DeviceStaging {
 public:
  // Cuts `pinned_bytes` into buffers of `buffer_bytes`, the longest frame. `device` outlives the
  // staging. Errors: INVALID_ARGUMENT for fewer than kBuffersMin buffers; the device's.
  static constexpr size_t kBuffersMin = 4;
  static absl::StatusOr<std::unique_ptr<DeviceStaging>> Create(device::Device* device,
                                                               size_t pinned_bytes,
                                                               size_t buffer_bytes);
  size_t buffer_bytes() const { return buffer_bytes_; }

  // The servers' frames have up to `frame_bytes`, a multiple of 64: if the buffers are shorter,
  // cuts longer ones from the same memory. Before the first activity. Errors: FAILED_PRECONDITION
  // UNSUPPORTED, which changes nothing, when fewer than kBuffersMin of them would fit; the
  // device's.
  absl::Status FitFrames(size_t frame_bytes);

  // Begins an activity: returns when the work queued on the framework's stream is done, so that
  // gradients are complete and old weights have been read.
  absl::Status Begin(device::Stream framework);
  // Ends the activity: work queued on the framework's stream from now on sees the new weights.
  absl::Status End(device::Stream framework);
  // Ends it early: when this returns, no device work reads or writes a tensor.
  absl::Status EndEarly();

  // Whether the tensor that begins at `tensor` is on the device. Remembered until Begin.
  absl::StatusOr<bool> Holds(const void* tensor);

  // Whether Stage has a buffer, or an error. The last buffers are reserved for weights.
  bool HasRoom();
  // Begins to copy pieces of device memory, of elements of `dtype`, into a buffer, in their order.
  // Returns its number. RESOURCE_EXHAUSTED without room.
  absl::StatusOr<size_t> Stage(const std::vector<device::Piece>& pieces, DType dtype);
  // Waits for the bytes of Stage.
  absl::StatusOr<const char*> Await(size_t buffer);
  // The owner of those bytes: the buffer is free when the last copy is gone. Holds `kept` until
  // then.
  std::shared_ptr<const void> Lend(size_t buffer, std::shared_ptr<const void> kept);
  // Returns an unsent buffer of Stage.
  absl::Status Drop(size_t buffer);

  // A buffer to write weights to; then either Land, which begins to copy its bytes into pieces of
  // device memory, in their order, or Drop.
  absl::StatusOr<device::Pipeline::TakenBuffer> Take();
  absl::Status Land(size_t buffer, const std::vector<device::Piece>& pieces, DType dtype);

 private:
  // Buffers whose frames have left, until the session's next call here.
  struct Returned {
    Mutex mu;
    std::vector<size_t> buffers ABSL_GUARDED_BY(mu);
  };

  DeviceStaging(device::Device* device, size_t buffers, size_t buffer_bytes)
      : device_(device),
        buffers_(buffers),
        buffer_bytes_(buffer_bytes),
        returned_(std::make_shared<Returned>()) {}
  absl::Status TakeBack();

  device::Device* const device_;
  size_t buffers_, buffer_bytes_;
  const std::shared_ptr<Returned> returned_;
  std::unique_ptr<device::Pipeline> pipeline_;
  device::Event begun_{};
  size_t taken_ = 0;  // buffers of Stage and Take in use
  std::unordered_map<const void*, bool> holds_;
  absl::Status error_;  // of giving buffers back
};

}  // namespace ballast::client
