#include "client/device/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace ballast::device {
namespace {

// Numbers of cudaError_t, the same in every version.
constexpr int kSuccess = 0;
constexpr int kMemoryAllocation = 2;

// CUDA's number of a version: 13020 is 13.2.
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// The CUDA version that the host's driver supports, found without the CUDA part.
std::string DriverFound() {
  using VersionFn = int (*)(int*);
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  const auto version_of = driver == nullptr
                              ? nullptr
                              : reinterpret_cast<VersionFn>(dlsym(driver, "cuDriverGetVersion"));
  int version = 0;
  if (version_of == nullptr || version_of(&version) != kSuccess) return "no NVIDIA driver";
  return absl::StrCat("an NVIDIA driver for CUDA ", VersionText(version));
}

// Text after the fault of the shared object.
std::string OtherBuild() {
  return absl::StrCat("; found: ", DriverFound(), "; needed: a CUDA part with interface ",
                      cuda::kAbiVersion, " and a driver for CUDA ", VersionText(kRuntimeNeeded),
                      " or newer: install the client and its CUDA part from one build, or keep the "
                      "model on the CPU");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudaLibrary>> CudaLibrary::Open(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("this installation has no CUDA part (", path, ")", OtherBuild()));
  }
  // The CUDA runtime does not survive being closed.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA part cannot be opened: ", dlerror(), OtherBuild()));
  }
  const auto table = reinterpret_cast<cuda::TableFn>(dlsym(handle, cuda::kTableSymbol));
  if (table == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has no symbol ", cuda::kTableSymbol, OtherBuild()));
  }
  return Over(table(), path);
}

absl::StatusOr<std::shared_ptr<const CudaLibrary>> CudaLibrary::Over(const cuda::Table* table,
                                                                     const std::string& name) {
  if (table->abi_version != cuda::kAbiVersion) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has interface ", table->abi_version,
                                                      ", this client has ", cuda::kAbiVersion,
                                                      OtherBuild()));
  }
  return std::shared_ptr<const CudaLibrary>(new CudaLibrary(table, name));
}

absl::StatusOr<int> CudaLibrary::DeviceCount() const {
  int count = 0;
  const int error = table_->device_count(&count);
  if (error == kSuccess && count > 0) return count;
  int driver = 0, runtime = 0;
  table_->driver_version(&driver);
  table_->runtime_version(&runtime);
  const std::string needed = VersionText(runtime);
  if (driver == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no NVIDIA driver on this host; ", name_, " needs one for CUDA ", needed,
                     ": install it, or keep the model on the CPU"));
  }
  if (driver / 1000 < runtime / 1000) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver is for CUDA ", VersionText(driver), ", ", name_, " needs ",
                     needed, ": update the driver, or keep the model on the CPU"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "CUDA shows no GPU: ", error == kSuccess ? "0 devices" : table_->error_text(error),
      " (driver for CUDA ", VersionText(driver), ", runtime ", needed,
      "); look at nvidia-smi and at CUDA_VISIBLE_DEVICES"));
}

absl::Status CudaLibrary::ErrorOf(const std::string& what, int error) const {
  const std::string text = absl::StrCat(what, ": ", table_->error_name(error), " (", error, "), ",
                                        table_->error_text(error));
  if (error == kMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(absl::StrCat(text, "; restart this trainer"));
}

}  // namespace ballast::device
