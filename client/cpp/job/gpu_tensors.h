// A job's tensors on a GPU, as a session needs them: the device, its staging, and the framework's
// stream before and after each activity.
// Comes from: Client::Attach. Goes to: Session, SessionCore. Thread safety: as DeviceStaging.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "client/cpp/job/device_staging.h"
#include "client/device/cuda_device.h"
#include "common/tensor/layout.h"

namespace ballast::client {

class GpuTensors {
 public:
  // Opens the CUDA part and takes the pinned memory, before the job is attached to. Null when `gpu`
  // is not set. Errors: INVALID_ARGUMENT BAD_ARGUMENT; those of CudaLibrary and CudaDevice.
  static absl::StatusOr<std::unique_ptr<GpuTensors>> Open(const std::optional<Gpu>& gpu);
  // Of `staging`, whose device outlives the object. `current_stream`: the framework's present one.
  GpuTensors(std::unique_ptr<DeviceStaging> staging, std::function<device::Stream()> current_stream)
      : current_stream_(std::move(current_stream)), staging_(std::move(staging)) {}
  DeviceStaging* staging() { return staging_.get(); }

  // Before and after an activity, on the caller's thread: DeviceStaging::Begin and End for the
  // framework's present stream.
  absl::Status Begin();
  absl::Status End();

 private:
  std::unique_ptr<device::CudaDevice> device_;  // that of Open; before its staging
  const std::function<device::Stream()> current_stream_;
  const std::unique_ptr<DeviceStaging> staging_;
};

// CRC32C of each tensor's memory, on the host or on the device of `gpu`, which may be null; 0 where
// there is none. With a device, after GpuTensors::Begin. Error: the device's.
absl::StatusOr<std::vector<uint32_t>> DigestsOf(const std::vector<const char*>& values,
                                                const std::vector<LayoutTensor>& sizes,
                                                DeviceStaging* staging);
absl::StatusOr<std::vector<uint32_t>> DigestsOf(const std::vector<void*>& weights,
                                                const std::vector<LayoutTensor>& sizes,
                                                DeviceStaging* staging);

}  // namespace ballast::client
