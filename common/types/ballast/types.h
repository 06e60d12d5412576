// Enums and limits that trainers, servers, wire and files share. Their numbers are those of
// ballast.v1 (types.proto, control.proto): never renumber. common/types/enum_names.h has their
// texts.
// Comes from: programs, the wire. Goes to: the client's public headers, the servers' rooms.
// C++17-clean. Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Element type of a parameter, its gradient and its weight on the wire, in memory and in files.
enum class DType : uint8_t { kF32 = 1, kBF16 = 2, kF16 = 3 };

// Where the weights of a new job come from.
enum class InitMode : uint8_t {
  // Every trainer holds equal weights: the servers compare digests, the lead trainer uploads.
  kEqual = 1,
  // The lead trainer uploads, the others receive its weights at attach.
  kBroadcast = 2,
};

// Failures that a finished round survives.
enum class Durability : uint8_t {
  kPower = 1,    // power loss of every host
  kProcess = 2,  // kill -9 of every server process
  kNone = 3,     // nothing: a lost server ends the job
};

// Where the servers should keep the optimizer state: a hint that changes no bit, on which trainers
// need not agree. ds_config offload_optimizer.device.
enum class Device : uint8_t {
  kAuto = 0,  // in memory if it fits, else on NVMe if the job is durable
  kCpu = 1,   // in memory, or the job is refused with OVER_BUDGET
  kNvme = 2,  // on NVMe, with as much of it in memory as fits; durable jobs only
};

// Policy for a round in which a gradient, or the sum of the gradients, is NaN or Inf. Either way no
// server applies any of it: RoundReport::applied is false.
enum class NonfinitePolicy : uint8_t {
  kSkip = 0,  // the job continues, after at most max_consecutive_skips such rounds in a row
  kHalt = 1,  // the step of every trainer ends with NONFINITE
};

// How the gradients of the trainers relate.
enum class Gradients : uint8_t {
  kLocal = 0,  // each trainer has its own, and the servers average them
  // Every trainer has the same mean already, as in DDP: the lead trainer pushes it, and its sum is
  // divided by nothing. The others send no gradients, but lend them all the same: after a loss one
  // of them takes the lead in the same round. In the first rounds of an epoch, and in each
  // hundredth, the servers compare checksums of them: GRADIENT_MISMATCH.
  kReduced = 1,
  // Each trainer has the sum over all trainers, of at least the extents dealt to it, and pushes
  // those alone: 1 of world() parts. The servers divide by the world. All trainers have gradients
  // of the same tensors, else GRADIENT_MISMATCH. See docs/collectives.md.
  kScattered = 2,
};

// How Attach treats an existing job of the same name.
enum class Resume : uint8_t {
  kNever = 1,  // a new job; NAME_IN_USE when one exists
  kAuto = 2,   // the job of that name if one exists, else a new one
  kMust = 3,   // the job of that name; UNKNOWN_JOB when none exists
};

// Whose arithmetic loss scale and schedule follow.
enum class PolicyProfile : uint8_t {
  kExact = 0,
  kDeepSpeed = 1,  // with DeepSpeed's quirks (docs/schedules.md)
};

// Phase of a rank's work with its communicator.
enum class CollectivePhase : uint8_t {
  kNone = 0,  // not told
  kInit = 1,
  kAgreement = 2,
  kReduceScatter = 3,
  kPush = 4,
  kPull = 5,
  kAllGather = 6,
};

// A rank's present or latest work: "in reduce-scatter of bucket 7 of round 812".
struct Doing {
  CollectivePhase phase = CollectivePhase::kNone;
  uint32_t bucket = 0;
  uint64_t round = 0;  // 0: none

  friend bool operator==(const Doing& a, const Doing& b) {
    return a.phase == b.phase && a.bucket == b.bucket && a.round == b.round;
  }
};

// Most bytes of a user state (Client::SetUserState).
inline constexpr size_t kUserStateBytesMax = 65536;
// Most bytes of an id of a rendezvous. NCCL's has 128.
inline constexpr size_t kRendezvousIdBytesMax = 1024;
// Most bytes of a tag, and most tags of a generation.
inline constexpr size_t kRendezvousTagBytesMax = 64;
inline constexpr size_t kRendezvousTagsMax = 16;

}  // namespace ballast
