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
#include "ballast/job_settings.h"
#include "common/job/optimizer.h"
#include "common/job/policy_spec.h"
#include "common/tensor/dtype.h"
#include "common/tensor/layout.h"

namespace ballast {

inline constexpr uint32_t kReductionSlotOrderFp32 = 1;

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kF32;
  uint32_t group = 0;
  std::vector<std::string> aliases;

  bool operator==(const TensorSpec&) const = default;
};

// Trainers name the level of their job; without one, as in tests, a specification asks for no disk.
struct JobSpec : JobSettings {
  JobSpec() { durability = Durability::kNone; }

  std::string name;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Options options;  // of the optimizer, in its order; empty: each has its initial value
  uint32_t group_count = 1;
  std::vector<TensorSpec> tensors;
  uint32_t reduction_id = kReductionSlotOrderFp32;
  uint32_t formula_id = 1;  // as the optimizer's row has it
  PolicySpec policy;        // a dynamic loss scale and a schedule, if it has them
};

// Whether the job outlives its servers.
inline bool IsDurable(const JobSettings& job) { return job.durability != Durability::kNone; }

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
