// The CUDA part of the client as a table of plain functions: what libballast_cuda.so exports.
// Comes from: api.cc, kernels.cu. Goes to: CudaLibrary, which opens the shared object, and
// CudaDevice. No type of CUDA passes it: streams and events are pointers of the CUDA runtime, and
// results are its error numbers (0 is success).
// Both sides come from one build. kAbiVersion rises when this file changes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/device/elements.h"

namespace ballast::device::cuda {

inline constexpr uint32_t kAbiVersion = 2;
inline constexpr char kTableSymbol[] = "ballast_cuda_table";

// A kernel takes its list of pieces by value, so that no list has to be copied to the device. One
// launch takes this many; the largest argument that every CUDA version permits is 4096 bytes.
inline constexpr uint32_t kPiecesPerLaunch = 128;

struct PieceRun {
  void* data[kPiecesPerLaunch];    // device memory
  uint64_t end[kPiecesPerLaunch];  // elements of this piece and all before it
  uint32_t pieces;                 // at least 1; none is empty
  float scale;                     // Pack only; at 1 elements are only cast
  void* packed;                    // device memory, end[pieces - 1] elements
};
static_assert(sizeof(PieceRun) <= 4096);

struct TileRun {
  const void* data;  // device memory
  uint64_t count;    // elements, at least 1
  uint64_t tile_elements;
  TileFacts* facts;  // device memory, one per tile
};

struct EventCalls {
  int (*create)(void** event);
  int (*destroy)(void* event);
  int (*record)(void* event, void* stream);
  int (*synchronize)(void* event);
  int (*query)(void* event, int* done);  // 1 when it is done
};

// Numbers of element types: DType's.
struct Table {
  uint32_t abi_version;

  int (*driver_version)(int* version);  // of CUDA, as 1000 * major + 10 * minor; 0: no driver
  int (*runtime_version)(int* version);
  int (*device_count)(int* count);
  int (*set_device)(int ordinal);  // of the calling thread

  int (*pinned_allocate)(void** memory, size_t bytes);
  int (*pinned_free)(void* memory);
  int (*device_allocate)(void** memory, size_t bytes);
  int (*device_free)(void* memory);

  int (*stream_create)(void** stream);
  int (*stream_destroy)(void* stream);
  int (*stream_synchronize)(void* stream);
  int (*stream_captures)(void* stream, int* captures);  // 1 while a graph is captured on it
  int (*stream_wait)(void* stream, void* event);
  EventCalls events;

  int (*device_of)(const void* data, int* ordinal);  // -1: memory of the host

  int (*copy)(void* stream, void* to, const void* from, size_t bytes);
  int (*pack)(void* stream, uint32_t tensor_dtype, uint32_t packed_dtype, const PieceRun* run);
  int (*unpack)(void* stream, uint32_t tensor_dtype, uint32_t packed_dtype, const PieceRun* run);
  int (*measure)(void* stream, uint32_t dtype, const TileRun* run);

  // Text of the CUDA runtime that lives as long as the process.
  const char* (*error_name)(int error);
  const char* (*error_text)(int error);
};

// The one symbol of the shared object: kTableSymbol, of this type.
using TableFn = const Table* (*)();

}  // namespace ballast::device::cuda
