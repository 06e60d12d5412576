#include "client/cpp/src/gpu_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/src/attach.h"
#include "client/device/cuda_device.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"

namespace ballast::client {
namespace {

// The longest frame that a server may ask for: the default of rounds.chunk_bytes.
constexpr size_t kBufferBytes = 1 << 20;

absl::StatusOr<uint32_t> DigestOnDevice(const char* values, size_t bytes, ::ballast::DType dtype,
                                        DeviceDesk* desk) {
  uint32_t crc = 0;
  for (size_t at = 0; at < bytes;) {
    const size_t some = std::min(bytes - at, desk->buffer_bytes());
    const device::Piece piece{const_cast<char*>(values) + at, some / DTypeBytes(dtype)};
    BALLAST_ASSIGN_OR_RETURN(const size_t buffer, desk->Stage({piece}, dtype));
    BALLAST_ASSIGN_OR_RETURN(const char* const staged, desk->Await(buffer));
    crc = Crc32c(staged, some, crc);
    BALLAST_RETURN_IF_ERROR(desk->Drop(buffer));
    at += some;
  }
  return crc;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuTensors>> GpuTensors::Open(const std::optional<Gpu>& gpu) {
  if (!gpu.has_value()) return std::unique_ptr<GpuTensors>();
  if (!gpu->current_stream) return BadArgument("Gpu::current_stream is not set");
  BALLAST_ASSIGN_OR_RETURN(auto library, device::CudaLibrary::Open(gpu->library));
  BALLAST_ASSIGN_OR_RETURN(auto cuda,
                           device::CudaDevice::Create(std::move(library), gpu->ordinal, nullptr));
  device::CudaDevice* const device = cuda.get();
  return Over(std::move(cuda), gpu->pinned_bytes,
              [device, stream = gpu->current_stream] { return device->Adopt(stream()); });
}

absl::StatusOr<std::unique_ptr<GpuTensors>> GpuTensors::Over(std::unique_ptr<device::Device> device,
                                                             size_t pinned_bytes,
                                                             StreamFn current_stream) {
  if (pinned_bytes < DeviceDesk::kBuffersMin * kBufferBytes) {
    return BadArgument(absl::StrCat("pinned_bytes is ", pinned_bytes, "; give at least ",
                                    DeviceDesk::kBuffersMin * kBufferBytes,
                                    ", a few frames of 1 MiB"));
  }
  std::unique_ptr<GpuTensors> gpu(new GpuTensors(std::move(device), std::move(current_stream)));
  BALLAST_ASSIGN_OR_RETURN(gpu->desk_,
                           DeviceDesk::Create(gpu->device_.get(), pinned_bytes, kBufferBytes));
  return gpu;
}

absl::Status GpuTensors::Begin() { return desk_->Begin(current_stream_()); }

absl::Status GpuTensors::End() { return desk_->End(current_stream_()); }

absl::StatusOr<std::vector<uint32_t>> DigestsOf(const std::vector<const char*>& values,
                                                const std::vector<LayoutTensor>& sizes,
                                                DeviceDesk* desk) {
  std::vector<uint32_t> digests(values.size(), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == nullptr) continue;
    const size_t bytes = sizes[i].elements * DTypeBytes(sizes[i].dtype);
    bool on_device = false;
    if (desk != nullptr) {
      BALLAST_ASSIGN_OR_RETURN(on_device, desk->Holds(values[i]));
    }
    if (on_device) {
      BALLAST_ASSIGN_OR_RETURN(digests[i], DigestOnDevice(values[i], bytes, sizes[i].dtype, desk));
    } else {
      digests[i] = Crc32c(values[i], bytes);
    }
  }
  return digests;
}

absl::StatusOr<std::vector<uint32_t>> DigestsOf(const std::vector<void*>& weights,
                                                const std::vector<LayoutTensor>& sizes,
                                                DeviceDesk* desk) {
  std::vector<const char*> values;
  for (const void* const weight : weights) values.push_back(static_cast<const char*>(weight));
  return DigestsOf(values, sizes, desk);
}

}  // namespace ballast::client
