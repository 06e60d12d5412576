// The CUDA part of the client, a shared object, opened only when a tensor on a GPU appears. Comes
// from: the path of libballast_cuda.so. Goes to: CudaDevice. The package runs without CUDA; this
// room has no type of CUDA, and knows the shared object by cuda_abi.h alone.
// Thread safety: a library does not change after Open.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/cuda_abi.h"

namespace ballast::device {

// CUDA's version of the runtime in the CUDA part; a driver of that major version or a newer one
// runs it.
inline constexpr int kRuntimeNeeded = 13000;

class CudaLibrary {
 public:
  // Opens the shared object at `path`; it stays in the process for ever. NOT_FOUND: no such file.
  // FAILED_PRECONDITION: the loader refuses it, it is another library or from another build.
  static absl::StatusOr<std::shared_ptr<const CudaLibrary>> Open(const std::string& path);

  // For tables already in the process. Same errors.
  static absl::StatusOr<std::shared_ptr<const CudaLibrary>> Over(const cuda::Table* table,
                                                                 const std::string& name);

  const cuda::Table& table() const { return *table_; }

  // How many GPUs the driver shows. FAILED_PRECONDITION when it shows none, or is missing or older
  // than this build needs: the text has both versions and the next step.
  absl::StatusOr<int> DeviceCount() const;

  // The error of a call, `what` being the call and its arguments. RESOURCE_EXHAUSTED: no memory.
  // INTERNAL: any other; CUDA answers later calls of the process with the same error.
  absl::Status ErrorOf(const std::string& what, int error) const;

 private:
  CudaLibrary(const cuda::Table* table, std::string name) : table_(table), name_(std::move(name)) {}

  const cuda::Table* const table_;
  const std::string name_;
};

}  // namespace ballast::device
