// Compares nccl_abi.h with the true nccl.h, at compile time: numbers, structs, and the parameters
// of each function that we call. There is nothing to run. Built where BALLAST_NCCL_INCLUDE names
// the folder of nccl.h; docs/nccl.md says how.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "client/collective/nccl_abi.h"

namespace ballast::collective::nccl {
namespace {

// --- Numbers ------------------------------------------------------------------------------------

static_assert(kSuccess == ncclSuccess);
static_assert(kUnhandledCudaError == ncclUnhandledCudaError);
static_assert(kSystemError == ncclSystemError);
static_assert(kInternalError == ncclInternalError);
static_assert(kInvalidArgument == ncclInvalidArgument);
static_assert(kInvalidUsage == ncclInvalidUsage);
static_assert(kRemoteError == ncclRemoteError);
static_assert(kInProgress == ncclInProgress);
static_assert(kUint8 == ncclUint8);
static_assert(kFloat16 == ncclFloat16);
static_assert(kFloat32 == ncclFloat32);
static_assert(kBfloat16 == ncclBfloat16);
static_assert(kSum == ncclSum);
static_assert(kLeastVersion == NCCL_VERSION(2, 22, 0));
static_assert(NCCL_VERSION_CODE >= kLeastVersion);

// --- Structs ------------------------------------------------------------------------------------

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(UniqueId) == alignof(ncclUniqueId));
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(Config().version == NCCL_VERSION(2, 14, 0));

constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(Config().magic == kTheirs.magic);

// --- Functions ----------------------------------------------------------------------------------

// Whether two types travel alike: numbers and enums of one size, any two pointers, structs of one
// size.
template <typename A, typename B>
constexpr bool Alike() {
  constexpr bool number_a = std::is_integral_v<A> || std::is_enum_v<A>;
  constexpr bool number_b = std::is_integral_v<B> || std::is_enum_v<B>;
  if (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  }
  return number_a == number_b && sizeof(A) == sizeof(B);
}

template <typename Ours, typename Theirs>
constexpr bool kSameCall = false;
template <typename R, typename... A, typename S, typename... B>
constexpr bool kSameCall<R (*)(A...), S (*)(B...)> = [] {
  if constexpr (sizeof...(A) == sizeof...(B)) return Alike<R, S>() && (Alike<A, B>() && ...);
  return false;
}();

#define SAME_CALL(field, function) \
  static_assert(kSameCall<decltype(Functions::field), decltype(&(function))>)

SAME_CALL(get_version, ncclGetVersion);
SAME_CALL(get_unique_id, ncclGetUniqueId);
SAME_CALL(comm_init_rank_config, ncclCommInitRankConfig);
SAME_CALL(comm_get_async_error, ncclCommGetAsyncError);
SAME_CALL(comm_abort, ncclCommAbort);
SAME_CALL(group_start, ncclGroupStart);
SAME_CALL(group_end, ncclGroupEnd);
SAME_CALL(reduce_scatter, ncclReduceScatter);
SAME_CALL(all_gather, ncclAllGather);
SAME_CALL(get_error_string, ncclGetErrorString);
SAME_CALL(get_last_error, ncclGetLastError);

// What must not pass.
static_assert(!kSameCall<decltype(Functions::comm_abort), decltype(&ncclGroupStart)>);
static_assert(!kSameCall<decltype(Functions::all_gather), decltype(&ncclReduceScatter)>);

}  // namespace
}  // namespace ballast::collective::nccl
