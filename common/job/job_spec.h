// JobSpec: everything that decides a job's bits, validated against every limit before anything is
// allocated. Comes from: the first slot's Attach. Goes to: layout, rounds, the peers.
// Thread safety: plain values and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/optimizer.h"
#include "common/job/policy_spec.h"
#include "common/tensor/dtype.h"
#include "common/tensor/layout.h"

namespace ballast {

// Numbers equal ballast.v1.Durability.
enum class Durability : uint8_t { kUnspecified = 0, kPower = 1, kProcess = 2, kNone = 3 };

// Where the optimizer state should live. A hint that changes no bit: trainers need not agree on it.
// Numbers equal ballast.v1.Device.
enum class Device : uint8_t {
  kAuto = 0,  // in memory if it fits, else on NVMe if the job is durable
  kCpu = 1,   // in memory, or the job is refused
  kNvme = 2,  // on NVMe, with as much of it in memory as fits
};

// Treatment of a round whose gradient is not finite. Numbers equal ballast.v1.NonfinitePolicy.
enum class NonfinitePolicy : uint8_t {
  kSkip = 0,  // nothing is applied, the job continues: at most max_consecutive_skips in a row
  kHalt = 1,  // nothing is applied, and every trainer's step ends with the error NONFINITE
};

// How the gradients of the slots of a round relate. Numbers equal ballast.v1.Gradients.
enum class Gradients : uint8_t {
  kLocal = 0,    // each slot has its own, and the servers average them
  kReduced = 1,  // every slot has the same mean already, as in DDP: one slot pushes it
  // Each slot has the sum over all slots for the extents dealt to it, and pushes those.
  kScattered = 2,
};

inline constexpr uint32_t kMaxConsecutiveSkips = 100;  // default

inline constexpr uint32_t kReductionSlotOrderFp32 = 1;
// State that a slot may leave with a round for its script to continue from (RoundBegin.user_state).
inline constexpr uint32_t kUserStateBytesMax = 65536;

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  uint32_t group = 0;
  std::vector<std::string> aliases;

  bool operator==(const TensorSpec&) const = default;
};

struct JobSpec {
  std::string name;
  uint32_t world = 1;           // trainers; of a variable world those that the job starts with
  bool variable_world = false;  // trainers may come and go; else a lost one is waited for
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Options options;  // of the optimizer, in its order; empty: each has its initial value
  uint32_t group_count = 1;
  std::vector<TensorSpec> tensors;
  double max_grad_norm = 0;
  double loss_scale = 1;
  Durability durability = Durability::kNone;
  uint32_t tile_elements = 65536;
  uint32_t extent_elements = 1u << 20;
  uint32_t reduction_id = kReductionSlotOrderFp32;
  uint32_t formula_id = 1;  // as the optimizer's row has it
  NonfinitePolicy nonfinite = NonfinitePolicy::kSkip;
  // Rounds in a row that may be skipped; one more is halted. 0: no limit.
  uint32_t max_consecutive_skips = kMaxConsecutiveSkips;
  Device device = Device::kAuto;
  PolicySpec policy;  // a dynamic loss scale and a schedule, if it has them
  Gradients gradients = Gradients::kLocal;
};

// Bytes of all slots' user states of a round together. The home's log reserves room for them: in a
// variable world for those of 8 trainers, or of more smaller ones.
inline uint64_t UserStatesBytesMax(const JobSpec& spec) {
  constexpr uint32_t kVariableWorld = 8;
  const uint32_t full = spec.variable_world ? std::max(spec.world, kVariableWorld) : spec.world;
  return uint64_t{full} * kUserStateBytesMax;
}

// Limits of one server; each refusal names the value, the limit and the config key.
struct JobLimits {
  uint32_t slots_max = 4096;
  uint32_t tensors_max = 1'000'000;
  uint32_t groups_max = 4096;
  uint32_t name_bytes_max = 255;
  uint32_t rank_max = 8;
};

// Element count of `tensor` by checked multiplication. Errors: INVALID_ARGUMENT for a negative
// dimension, too many dimensions or an overflow.
absl::StatusOr<uint64_t> ElementCount(const TensorSpec& tensor, const JobLimits& limits);

// INVALID_ARGUMENT (reason BAD_SPEC) unless `number` is that of a kind that jobs may have.
absl::Status CheckOptimizerKind(int number);

// INVALID_ARGUMENT (reason BAD_SPEC, of its policy BAD_HYPERPARAM) naming the first offending
// field; UNIMPLEMENTED for features that this version does not offer. Never allocates more than the
// spec itself holds.
absl::Status ValidateJobSpec(const JobSpec& spec, const JobLimits& limits);

// "local", "reduced" or "scattered".
inline absl::string_view NameOf(Gradients gradients) {
  if (gradients == Gradients::kScattered) return "scattered";
  return gradients == Gradients::kReduced ? "reduced" : "local";
}

// The table's row of the job's optimizer. The spec must be valid, here and below.
const OptimizerRow& OptimizerRowOf(const JobSpec& spec);
// The job's optimizer, with the initial values of options that the spec leaves out.
Optimizer OptimizerOf(const JobSpec& spec);
// The arrays after the master weight, in the order of a tile.
std::span<const StateArray> StateArraysOf(const JobSpec& spec);
// fp32 arrays per parameter, the master weight included.
uint32_t StateArrayCount(const JobSpec& spec);
// Value of all elements of that array before the first step; 0 for the master weight.
float InitialValue(const JobSpec& spec, uint32_t array);

// Manifest as the layout sees it. The spec must be valid.
std::vector<LayoutTensor> LayoutTensors(const std::vector<TensorSpec>& tensors);

// First field in which `theirs` differs from the job's `ours`, as "world is 4, the job has 2";
// empty when equal. The world of a job with a variable world is not compared.
std::string FirstDifference(const JobSpec& ours, const JobSpec& theirs);

// Checks one round's raw hyper-parameters of all groups: as many as the optimizer has, finite and
// in its ranges; and none that the job's options rule out, as a momentum in a job that keeps no
// momentum buffer. Error: INVALID_ARGUMENT naming group, key and value (reason BAD_HYPERPARAM).
absl::Status ValidateHyper(const JobSpec& spec, const std::vector<Hyper>& hyper);

}  // namespace ballast
