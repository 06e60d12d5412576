#include "client/cpp/job/gpu_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/job/arguments.h"
#include "common/base/status_macros.h"
#include "common/bytes/crc32c.h"

namespace ballast::client {
namespace {

// Until the servers say how long their frames are: the default of rounds.chunk_bytes.
constexpr size_t kBufferBytes = 1 << 20;

absl::StatusOr<uint32_t> DigestOnDevice(const char* values, size_t bytes, DType dtype,
                                        DeviceStaging* staging) {
  uint32_t crc = 0;
  for (size_t at = 0; at < bytes;) {
    const size_t some = std::min(bytes - at, staging->buffer_bytes());
    const device::Piece piece{const_cast<char*>(values) + at, some / DTypeBytes(dtype)};
    BALLAST_ASSIGN_OR_RETURN(const size_t buffer, staging->Stage({piece}, dtype));
    BALLAST_ASSIGN_OR_RETURN(const char* const staged, staging->Await(buffer));
    crc = Crc32c(staged, some, crc);
    BALLAST_RETURN_IF_ERROR(staging->Drop(buffer));
    at += some;
  }
  return crc;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuTensors>> GpuTensors::Open(const std::optional<Gpu>& gpu) {
  if (!gpu.has_value()) return std::unique_ptr<GpuTensors>();
  if (!gpu->current_stream) return BadArgument("Gpu::current_stream is not set");
  if (gpu->pinned_bytes < DeviceStaging::kBuffersMin * kBufferBytes) {
    return BadArgument(absl::StrCat("pinned_bytes is ", gpu->pinned_bytes, "; give at least ",
                                    DeviceStaging::kBuffersMin * kBufferBytes,
                                    ", a few frames of 1 MiB"));
  }
  BALLAST_ASSIGN_OR_RETURN(auto library, device::CudaLibrary::Open(gpu->library));
  BALLAST_ASSIGN_OR_RETURN(auto device,
                           device::CudaDevice::Create(std::move(library), gpu->ordinal, nullptr));
  // A capture does not survive an allocation.
  BALLAST_RETURN_IF_ERROR(device->CheckNotCapturing(device->Adopt(gpu->current_stream())));
  BALLAST_ASSIGN_OR_RETURN(auto staging,
                           DeviceStaging::Create(device.get(), gpu->pinned_bytes, kBufferBytes));
  const auto stream = [cuda = device.get(), current = gpu->current_stream] {
    return cuda->Adopt(current());
  };
  auto tensors = std::make_unique<GpuTensors>(std::move(staging), stream);
  tensors->device_ = std::move(device);
  return tensors;
}

absl::Status GpuTensors::Begin() { return staging_->Begin(current_stream_()); }

absl::Status GpuTensors::End() { return staging_->End(current_stream_()); }

absl::StatusOr<std::vector<uint32_t>> DigestsOf(const std::vector<const char*>& values,
                                                const std::vector<LayoutTensor>& sizes,
                                                DeviceStaging* staging) {
  std::vector<uint32_t> digests(values.size(), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == nullptr) continue;
    const size_t bytes = sizes[i].elements * DTypeBytes(sizes[i].dtype);
    bool on_device = false;
    if (staging != nullptr) {
      BALLAST_ASSIGN_OR_RETURN(on_device, staging->Holds(values[i]));
    }
    if (on_device) {
      BALLAST_ASSIGN_OR_RETURN(digests[i],
                               DigestOnDevice(values[i], bytes, sizes[i].dtype, staging));
    } else {
      digests[i] = Crc32c(values[i], bytes);
    }
  }
  return digests;
}

absl::StatusOr<std::vector<uint32_t>> DigestsOf(const std::vector<void*>& weights,
                                                const std::vector<LayoutTensor>& sizes,
                                                DeviceStaging* staging) {
  std::vector<const char*> values;
  for (const void* const weight : weights) values.push_back(static_cast<const char*>(weight));
  return DigestsOf(values, sizes, staging);
}

}  // namespace ballast::client
