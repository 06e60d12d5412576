// The part of NCCL in use: its functions, numbers and structs as nccl.h declares them, so that no
// header of NCCL is needed.
// Comes from: libnccl.so.2, which NcclLibrary opens. Goes to: NcclComms, NcclCollective, and the
// tests' fake NCCL. Types of CUDA are pointers. Thread safety: none; a group of calls belongs to
// the thread that begins it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::collective::nccl {

struct OpaqueComm;
using Comm = OpaqueComm*;

struct UniqueId {
  char internal[128];
};

// Results. Others are errors of NCCL's own.
inline constexpr int kSuccess = 0;
inline constexpr int kUnhandledCudaError = 1;
inline constexpr int kSystemError = 2;
inline constexpr int kInternalError = 3;
inline constexpr int kInvalidArgument = 4;
inline constexpr int kInvalidUsage = 5;
inline constexpr int kRemoteError = 6;
inline constexpr int kInProgress = 7;

// ncclDataType_t and ncclRedOp_t.
inline constexpr int kUint8 = 1;
inline constexpr int kFloat16 = 6;
inline constexpr int kFloat32 = 7;
inline constexpr int kBfloat16 = 9;
inline constexpr int kSum = 0;

// Versions are 10000 * major + 100 * minor + patch since 2.9.
// From 2.22 on, communicators aborted within a group are all marked before the first is freed. In
// older ones each abort frees at once, which blocks while a kernel of another communicator of the
// process hangs (decision 045). Calls that do not block are older: 2.14.
inline constexpr int kLeastVersion = 22200;

// ncclConfig_t as of 2.14. A newer NCCL reads `size` bytes of it and takes its defaults for what
// `version` does not have.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
};

struct Functions {
  int (*get_version)(int* version);
  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank_config)(Comm* comm, int world, UniqueId id, int rank, Config* config);
  int (*comm_get_async_error)(Comm comm, int* result);
  int (*comm_abort)(Comm comm);  // and frees it
  int (*group_start)();
  int (*group_end)();
  // `count`: elements of a share.
  int (*reduce_scatter)(const void* bucket, void* share, size_t count, int dtype, int op, Comm comm,
                        void* stream);
  int (*all_gather)(const void* share, void* bucket, size_t count, int dtype, Comm comm,
                    void* stream);
  const char* (*get_error_string)(int result);
  const char* (*get_last_error)(Comm comm);  // of the whole process; `comm` may be null
};

}  // namespace ballast::collective::nccl
