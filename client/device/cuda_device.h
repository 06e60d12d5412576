// One GPU as a device, over the table of the CUDA part.
// Comes from: the pipelines. Goes to: the GPU. Each function checks its arguments and makes one
// call of the table; what CUDA answers is in the status. Nothing waits for the whole device.
// docs/gpu.md says what the tests show, and what ran on a GPU.
// Thread safety: thread-compatible. CUDA's current device of the calling thread becomes this one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/device/cuda_library.h"
#include "client/device/device.h"

namespace ballast::device {

class CudaDevice final : public Device {
 public:
  // Tells the tensors' allocator that work on `stream` uses this memory (torch's record_stream).
  // Empty when tensors outlive the work, as those of a session do.
  using KeepFn = std::function<absl::Status(void* stream, const void* data, size_t bytes)>;

  // INVALID_ARGUMENT: no GPU of that number. Else what CudaLibrary::DeviceCount answers.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(
      std::shared_ptr<const CudaLibrary> library, int ordinal, KeepFn keep);
  // Waits for the work on its own streams, then frees all that it made.
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // A number for a stream of the framework (a cudaStream_t), the same for the same stream. The
  // stream is the framework's and outlives its use here.
  Stream Adopt(void* stream);

  // FAILED_PRECONDITION while the stream captures a CUDA graph: the work would become a part of the
  // graph.
  absl::Status CheckNotCapturing(Stream stream) const;

  absl::StatusOr<void*> Allocate(MemoryKind kind, size_t bytes) override;
  absl::StatusOr<Stream> NewStream() override;
  absl::StatusOr<Event> NewEvent() override;
  absl::Status Copy(Stream stream, void* to, const void* from, size_t bytes) override;
  absl::Status Pack(Stream stream, const Packing& packing) override;
  absl::Status Unpack(Stream stream, const Packing& packing) override;
  absl::Status Measure(Stream stream, const Measurement& measurement) override;
  // Also as CheckNotCapturing.
  absl::Status Record(Stream stream, Event event) override;
  absl::Status Wait(Stream stream, Event event) override;
  absl::Status Keep(Stream stream, const void* data, size_t bytes) override;
  absl::Status Synchronize(Event event) override;
  absl::StatusOr<bool> Reached(Event event) override;
  absl::StatusOr<void*> Handle(Stream stream) override;
  absl::StatusOr<bool> Holds(const void* data) override;
  absl::Status HostReads(const void*, size_t) override { return absl::OkStatus(); }
  absl::Status HostWrites(void*, size_t) override { return absl::OkStatus(); }

 private:
  using LaunchFn = int (*)(void*, uint32_t, uint32_t, const cuda::PieceRun*);

  CudaDevice(std::shared_ptr<const CudaLibrary> library, int ordinal, KeepFn keep)
      : library_(std::move(library)),
        cuda_(library_->table()),
        ordinal_(ordinal),
        keep_(std::move(keep)) {}
  // Makes this GPU the thread's.
  absl::Status Enter() const;
  absl::Status Checked(int error, const std::string& what) const;
  absl::Status LaunchPieces(Stream stream, const Packing& packing, LaunchFn launch,
                            const char* what) const;
  void* StreamOf(Stream stream) const { return streams_.at(static_cast<uint32_t>(stream)); }
  void* EventOf(Event event) const { return events_.at(static_cast<uint32_t>(event)); }

  const std::shared_ptr<const CudaLibrary> library_;
  const cuda::Table& cuda_;
  const int ordinal_;
  const KeepFn keep_;
  std::vector<void*> streams_, own_streams_, events_;
  std::vector<void*> pinned_, memory_;
};

}  // namespace ballast::device
