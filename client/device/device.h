// The device seam: the client's interface to the place where a trainer's tensors live. No type of
// CUDA passes it.
// Comes from: pipeline.cc. Goes to: HostDevice, CudaDevice, the tests' hostile device.
// The rules are CUDA's. Work on one stream runs in order, work on two streams in any order. An
// event stands for the newest Record before the call that names it; one without a Record is done.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/device/elements.h"
#include "common/tensor/dtype.h"

namespace ballast::device {

// kPinned is host memory that a device copies from and to without waiting for the host.
enum class MemoryKind : uint8_t { kPinned, kDevice };

// Numbers that the device gave out.
enum class Stream : uint32_t {};
enum class Event : uint32_t {};

// A part of one tensor, in device memory of the caller.
struct Piece {
  void* data;
  size_t count;  // elements
};

// Elements of many pieces, one after the other, and one run of packed elements. Pack reads pieces
// and writes `packed`; Unpack reads `packed` and writes pieces. The device copies the list of
// pieces; the memory stays the caller's until the work has run.
struct Packing {
  std::span<const Piece> pieces;
  DType tensor_dtype;  // of the pieces
  DType packed_dtype;
  void* packed;        // device memory, as many elements as all pieces have
  float scale = 1.0f;  // Pack only: multiplies the elements; at 1 they are only cast
};

// A run of elements in tiles, the last of which may be short; measures a tile as server/reduce
// does, with the same bits, and also finds the first non-finite element.
struct Measurement {
  const void* data;  // device memory of the caller
  size_t count;      // elements
  DType dtype;
  size_t tile_elements;  // a multiple of kNormLanes
  TileFacts* facts;      // device memory of the caller, one per tile
};

class Device {
 public:
  virtual ~Device() = default;

  // Memory that lives as long as the device. There is one pinned slab, for all buffers, before the
  // first work: a second one is FAILED_PRECONDITION. No bytes at all is INVALID_ARGUMENT.
  virtual absl::StatusOr<void*> Allocate(MemoryKind kind, size_t bytes) = 0;
  virtual absl::StatusOr<Stream> NewStream() = 0;
  virtual absl::StatusOr<Event> NewEvent() = 0;

  // These queue work on a stream and return at once. Both ends of a copy are the caller's until it
  // has run, and do not overlap.
  virtual absl::Status Copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual absl::Status Pack(Stream stream, const Packing& packing) = 0;
  virtual absl::Status Unpack(Stream stream, const Packing& packing) = 0;
  virtual absl::Status Measure(Stream stream, const Measurement& measurement) = 0;
  virtual absl::Status Record(Stream stream, Event event) = 0;
  virtual absl::Status Wait(Stream stream, Event event) = 0;

  // Says that work queued on `stream` uses this memory of a tensor: the tensor's allocator gives it
  // to no other tensor before that work has run.
  virtual absl::Status Keep(Stream stream, const void* data, size_t bytes) = 0;

  // Blocks the host until the event is done.
  virtual absl::Status Synchronize(Event event) = 0;

  // Whether the event is done; for a host that looks at a clock meanwhile. Does not wait.
  virtual absl::StatusOr<bool> Reached(Event event) = 0;

  // What other libraries call the stream (a cudaStream_t); null where there is no such thing. On a
  // GPU that one becomes the calling thread's.
  virtual absl::StatusOr<void*> Handle(Stream stream) = 0;

  // Whether `data` is in this device's memory; else it is in the host's. FAILED_PRECONDITION when
  // it is in another device's: the error names both.
  virtual absl::StatusOr<bool> Holds(const void* data) = 0;

  // Says that the host is about to read or write pinned memory. A device that checks answers
  // FAILED_PRECONDITION when queued work still uses these bytes; the others answer OK.
  virtual absl::Status HostReads(const void* data, size_t bytes) = 0;
  virtual absl::Status HostWrites(void* data, size_t bytes) = 0;
};

}  // namespace ballast::device
