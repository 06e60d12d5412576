#include "client/device/cuda_device.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/device/pack.h"
#include "common/base/status_macros.h"

namespace ballast::device {
namespace {

std::string LockedMemoryLimit() {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_MEMLOCK, &limit) == 0;
  if (!known) return "ulimit -l is not known";
  if (limit.rlim_cur == RLIM_INFINITY) return "ulimit -l is unlimited";
  return absl::StrCat("ulimit -l is ", limit.rlim_cur / 1024, " KiB");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(
    std::shared_ptr<const CudaLibrary> library, int ordinal, KeepFn keep) {
  BALLAST_ASSIGN_OR_RETURN(const int count, library->DeviceCount());
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no GPU ", ordinal, ": this process sees ", count));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(library), ordinal, std::move(keep)));
  BALLAST_RETURN_IF_ERROR(device->Enter());
  return device;
}

// Errors have no use here: the process ends, or CUDA has answered the same error before.
CudaDevice::~CudaDevice() {
  cuda_.set_device(ordinal_);
  for (void* stream : own_streams_) cuda_.stream_synchronize(stream);
  for (void* stream : own_streams_) cuda_.stream_destroy(stream);
  for (void* event : events_) cuda_.events.destroy(event);
  for (void* memory : memory_) cuda_.device_free(memory);
  for (void* memory : pinned_) cuda_.pinned_free(memory);
}

absl::Status CudaDevice::Enter() const {
  return Checked(cuda_.set_device(ordinal_), "use of the GPU (cudaSetDevice)");
}

absl::Status CudaDevice::Checked(int error, const std::string& what) const {
  if (error == 0) return absl::OkStatus();
  return library_->ErrorOf(absl::StrCat("GPU ", ordinal_, ": ", what), error);
}

Stream CudaDevice::Adopt(void* stream) {
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found == streams_.end()) {
    streams_.push_back(stream);
    return Stream{static_cast<uint32_t>(streams_.size() - 1)};
  }
  return Stream{static_cast<uint32_t>(found - streams_.begin())};
}

absl::StatusOr<void*> CudaDevice::Allocate(MemoryKind kind, size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("0 bytes of memory; ask for at least 1");
  const bool pinned = kind == MemoryKind::kPinned;
  if (pinned && !pinned_.empty()) {
    return absl::FailedPreconditionError("the pinned slab exists; cut all buffers from it");
  }
  BALLAST_RETURN_IF_ERROR(Enter());
  void* memory = nullptr;
  const int error =
      pinned ? cuda_.pinned_allocate(&memory, bytes) : cuda_.device_allocate(&memory, bytes);
  absl::Status status = Checked(
      error, absl::StrCat(bytes, " bytes of ",
                          pinned ? "pinned memory (cudaHostAlloc)" : "device memory (cudaMalloc)"));
  if (pinned && absl::IsResourceExhausted(status)) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        status.message(), "; give a smaller pinned_bytes, or let this process lock more memory (",
        LockedMemoryLimit(), ")"));
  }
  BALLAST_RETURN_IF_ERROR(status);
  (pinned ? pinned_ : memory_).push_back(memory);
  return memory;
}

absl::StatusOr<Stream> CudaDevice::NewStream() {
  BALLAST_RETURN_IF_ERROR(Enter());
  void* stream = nullptr;
  BALLAST_RETURN_IF_ERROR(
      Checked(cuda_.stream_create(&stream), "a new stream (cudaStreamCreateWithFlags)"));
  own_streams_.push_back(stream);
  return Adopt(stream);
}

absl::StatusOr<Event> CudaDevice::NewEvent() {
  BALLAST_RETURN_IF_ERROR(Enter());
  void* event = nullptr;
  BALLAST_RETURN_IF_ERROR(
      Checked(cuda_.events.create(&event), "a new event (cudaEventCreateWithFlags)"));
  events_.push_back(event);
  return Event{static_cast<uint32_t>(events_.size() - 1)};
}

absl::Status CudaDevice::Copy(Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(Enter());
  return Checked(cuda_.copy(StreamOf(stream), to, from, bytes),
                 absl::StrCat("copy of ", bytes, " bytes (cudaMemcpyAsync)"));
}

absl::Status CudaDevice::Pack(Stream stream, const Packing& packing) {
  return LaunchPieces(stream, packing, cuda_.pack, "pack");
}

absl::Status CudaDevice::Unpack(Stream stream, const Packing& packing) {
  return LaunchPieces(stream, packing, cuda_.unpack, "unpack");
}

absl::Status CudaDevice::LaunchPieces(Stream stream, const Packing& packing, LaunchFn launch,
                                      const char* what) const {
  BALLAST_RETURN_IF_ERROR(CheckPacking(packing));
  BALLAST_RETURN_IF_ERROR(Enter());
  cuda::PieceRun run{.scale = packing.scale, .packed = packing.packed};
  const auto flush = [&] {
    if (run.pieces == 0) return absl::OkStatus();
    const uint64_t elements = run.end[run.pieces - 1];
    const int error = launch(StreamOf(stream), static_cast<uint32_t>(packing.tensor_dtype),
                             static_cast<uint32_t>(packing.packed_dtype), &run);
    run.packed = static_cast<std::byte*>(run.packed) + elements * DTypeBytes(packing.packed_dtype);
    run.pieces = 0;
    return Checked(error, absl::StrCat(what, " of ", elements, " elements (cudaLaunchKernel)"));
  };
  for (const Piece& piece : packing.pieces) {
    if (piece.count == 0) continue;
    if (run.pieces == cuda::kPiecesPerLaunch) BALLAST_RETURN_IF_ERROR(flush());
    run.data[run.pieces] = piece.data;
    run.end[run.pieces] = (run.pieces == 0 ? 0 : run.end[run.pieces - 1]) + piece.count;
    ++run.pieces;
  }
  return flush();
}

absl::Status CudaDevice::Measure(Stream stream, const Measurement& measurement) {
  BALLAST_RETURN_IF_ERROR(CheckMeasurement(measurement));
  if (measurement.count == 0) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(Enter());
  const cuda::TileRun run{measurement.data, measurement.count, measurement.tile_elements,
                          measurement.facts};
  return Checked(cuda_.measure(StreamOf(stream), static_cast<uint32_t>(measurement.dtype), &run),
                 absl::StrCat("norm of ", measurement.count, " elements (cudaLaunchKernel)"));
}

absl::Status CudaDevice::CheckNotCapturing(Stream stream) const {
  int captures = 0;
  BALLAST_RETURN_IF_ERROR(Checked(cuda_.stream_captures(StreamOf(stream), &captures),
                                  "a look at the stream (cudaStreamIsCapturing)"));
  if (captures == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this stream captures a CUDA graph; call the optimizer's step() after the capture");
}

absl::Status CudaDevice::Record(Stream stream, Event event) {
  BALLAST_RETURN_IF_ERROR(Enter());
  BALLAST_RETURN_IF_ERROR(CheckNotCapturing(stream));
  return Checked(cuda_.events.record(EventOf(event), StreamOf(stream)),
                 "record of an event (cudaEventRecord)");
}

absl::Status CudaDevice::Wait(Stream stream, Event event) {
  BALLAST_RETURN_IF_ERROR(Enter());
  BALLAST_RETURN_IF_ERROR(CheckNotCapturing(stream));
  return Checked(cuda_.stream_wait(StreamOf(stream), EventOf(event)),
                 "wait for an event (cudaStreamWaitEvent)");
}

absl::Status CudaDevice::Keep(Stream stream, const void* data, size_t bytes) {
  return keep_ ? keep_(StreamOf(stream), data, bytes) : absl::OkStatus();
}

absl::StatusOr<bool> CudaDevice::Holds(const void* data) {
  BALLAST_RETURN_IF_ERROR(Enter());
  int ordinal = -1;
  BALLAST_RETURN_IF_ERROR(Checked(cuda_.device_of(data, &ordinal),
                                  "a look at a tensor's memory (cudaPointerGetAttributes)"));
  if (ordinal == -1 || ordinal == ordinal_) return ordinal == ordinal_;
  return absl::FailedPreconditionError(
      absl::StrCat("a tensor is in memory of GPU ", ordinal, ", this trainer uses GPU ", ordinal_,
                   "; keep all tensors of one process on one GPU"));
}

absl::Status CudaDevice::Synchronize(Event event) {
  BALLAST_RETURN_IF_ERROR(Enter());
  return Checked(cuda_.events.synchronize(EventOf(event)),
                 "work on a stream (cudaEventSynchronize)");
}

absl::StatusOr<bool> CudaDevice::Reached(Event event) {
  BALLAST_RETURN_IF_ERROR(Enter());
  int done = 0;
  BALLAST_RETURN_IF_ERROR(
      Checked(cuda_.events.query(EventOf(event), &done), "work on a stream (cudaEventQuery)"));
  return done != 0;
}

absl::StatusOr<void*> CudaDevice::Handle(Stream stream) {
  BALLAST_RETURN_IF_ERROR(Enter());
  return StreamOf(stream);
}

}  // namespace ballast::device
