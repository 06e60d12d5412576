// The parts of each optimizer kind: its hyper-parameters, the options that a job fixes, its state
// arrays and its formula. Rooms, logs and files take all of it from here as data, so that a further
// optimizer changes no format. LAMB takes two passes over the state in each round.
// Comes from: JobSpec. Goes to: rounds, state, the wire. Thread safety: immutable tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// Numbers equal ballast.v1.OptimizerKind and are stored in files: none is ever reused. 16 to 23 are
// reserved for kinds that compress their momentum (1-bit Adam, 0/1 Adam, 1-bit LAMB).
enum class OptimizerKind : uint8_t {
  kUnspecified = 0,
  kAdamW = 1,
  kAdam = 2,
  kSgd = 3,
  kAdagrad = 4,
  kLion = 5,
  kLamb = 6,
  kApplyDelta = 7,
};

// Order of each kind's hyper-parameters on the wire.
enum AdamWKey : size_t { kLr = 0, kBeta1, kBeta2, kEps, kWeightDecay, kAdamWKeyCount };  // and Adam
enum SgdKey : size_t { kSgdLr = 0, kSgdMomentum, kSgdDampening, kSgdWeightDecay };
enum AdagradKey : size_t { kAdagradLr = 0, kAdagradLrDecay, kAdagradWeightDecay, kAdagradEps };
enum LionKey : size_t { kLionLr = 0, kLionBeta1, kLionBeta2, kLionWeightDecay };
enum LambKey : size_t { kLambMaxCoeff = kAdamWKeyCount, kLambMinCoeff };  // after AdamW's five
enum ApplyDeltaKey : size_t { kDeltaLr = 0, kDeltaWeightDecay };

// Order of each kind's options.
enum AdamOption : size_t { kAdamAmsgrad = 0, kAdamMaximize };
enum SgdOption : size_t { kSgdHasMomentum = 0, kSgdNesterov, kSgdMaximize };
enum AdagradOption : size_t { kAdagradInitialValue = 0, kAdagradMaximize, kAdagradRawNumerator };
enum LionOption : size_t { kLionMovesAtZero = 0 };
enum LambOption : size_t { kLambBiasCorrection = 0, kLambUncorrectedRatio };

inline constexpr size_t kNoOption = static_cast<size_t>(-1);

// A hyper-parameter of a group: a double that travels with every round. Every value is finite, at
// least 0, and below `limit`.
struct HyperKey {
  const char* name;  // torch's
  double limit = std::numeric_limits<double>::infinity();
  size_t needs = kNoOption;  // the flag without which the value must be 0
};

// An option is fixed for the job. raw_numerator, moves_at_zero and uncorrected_ratio are for jobs
// that follow DeepSpeed where it differs from the paper; docs/numerics.md says how. A flag is 0 or
// 1; any other option is finite and at least 0.
struct OptionKey {
  const char* name;  // torch's, except kSgdHasMomentum: any group has momentum when the job starts
  bool is_flag = true;
  double initial = 0;        // the value of a job that does not name it
  size_t needs = kNoOption;  // the flag without which it must be 0
};

// An fp32 array after the master weight, one element per parameter.
struct StateArray {
  const char* name;                // as in torch's state_dict and in exports
  const char* shown;               // name of its values in messages
  size_t needs = kNoOption;        // the flag without which a job has no such array
  size_t filled_from = kNoOption;  // option with its initial value; 0 without one
};

struct OptimizerRow {
  OptimizerKind kind;
  const char* name;  // as messages show it
  std::span<const HyperKey> hyper;
  std::span<const OptionKey> options;
  std::span<const StateArray> arrays;  // in the order of a tile; arrays that need a flag come last
  uint32_t formula_id;                 // counts per kind: the text of its section in numerics.md
  uint32_t passes;                     // over the state in one round
};

// Raw hyper-parameters of one group, in key order.
using Hyper = std::vector<double>;
// Values of a job's options, in the order of its kind's row.
using Options = std::vector<double>;

inline constexpr HyperKey kAdamHyper[] = {
    {"lr"}, {"beta1", 1.0}, {"beta2", 1.0}, {"eps"}, {"weight_decay"}};
inline constexpr OptionKey kAdamOptions[] = {{"amsgrad"}, {"maximize"}};
inline constexpr StateArray kAdamArrays[] = {
    {"exp_avg", "first moments"},
    {"exp_avg_sq", "second moments"},
    {"max_exp_avg_sq", "largest second moments", kAdamAmsgrad}};

inline constexpr HyperKey kSgdHyper[] = {
    {"lr"}, {"momentum", 1.0, kSgdHasMomentum}, {"dampening", 1.0}, {"weight_decay"}};
inline constexpr OptionKey kSgdOptions[] = {
    {"momentum"}, {"nesterov", true, 0, kSgdHasMomentum}, {"maximize"}};
inline constexpr StateArray kSgdArrays[] = {
    {"momentum_buffer", "momentum buffers", kSgdHasMomentum}};

inline constexpr HyperKey kAdagradHyper[] = {{"lr"}, {"lr_decay"}, {"weight_decay"}, {"eps"}};
inline constexpr OptionKey kAdagradOptions[] = {
    {"initial_accumulator_value", false}, {"maximize"}, {"raw_numerator"}};
inline constexpr StateArray kAdagradArrays[] = {
    {"sum", "sums of squares", kNoOption, kAdagradInitialValue}};

inline constexpr HyperKey kLionHyper[] = {{"lr"}, {"beta1", 1.0}, {"beta2", 1.0}, {"weight_decay"}};
inline constexpr OptionKey kLionOptions[] = {{"moves_at_zero"}};
inline constexpr StateArray kLionArrays[] = {{"exp_avg", "momenta"}};

inline constexpr HyperKey kLambHyper[] = {{"lr"},           {"beta1", 1.0}, {"beta2", 1.0}, {"eps"},
                                          {"weight_decay"}, {"max_coeff"},  {"min_coeff"}};
inline constexpr OptionKey kLambOptions[] = {{"bias_correction", true, 1}, {"uncorrected_ratio"}};
inline constexpr StateArray kLambArrays[] = {{"exp_avg", "first moments"},
                                             {"exp_avg_sq", "second moments"}};

inline constexpr HyperKey kApplyDeltaHyper[] = {{"lr"}, {"weight_decay"}};

// One row per kind, in the order of their numbers.
inline constexpr OptimizerRow kOptimizers[] = {
    {OptimizerKind::kAdamW, "AdamW", kAdamHyper, kAdamOptions, kAdamArrays, 1, 1},
    {OptimizerKind::kAdam, "Adam", kAdamHyper, kAdamOptions, kAdamArrays, 1, 1},
    {OptimizerKind::kSgd, "SGD", kSgdHyper, kSgdOptions, kSgdArrays, 1, 1},
    {OptimizerKind::kAdagrad, "Adagrad", kAdagradHyper, kAdagradOptions, kAdagradArrays, 1, 1},
    {OptimizerKind::kLion, "Lion", kLionHyper, kLionOptions, kLionArrays, 1, 1},
    {OptimizerKind::kLamb, "LAMB", kLambHyper, kLambOptions, kLambArrays, 1, 2},
    {OptimizerKind::kApplyDelta, "apply_delta", kApplyDeltaHyper, {}, {}, 1, 1},
};

// Names of the kinds that jobs may have.
inline std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : kOptimizers) names.emplace_back(row.name);
  return names;
}

// The row of `kind`, or null for a number missing from the table. Static storage.
constexpr const OptimizerRow* FindOptimizer(OptimizerKind kind) {
  for (const OptimizerRow& row : kOptimizers) {
    if (row.kind == kind) return &row;
  }
  return nullptr;
}

// The same by name.
constexpr const OptimizerRow* FindOptimizer(std::string_view name) {
  for (const OptimizerRow& row : kOptimizers) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// fp32 arrays per parameter of a job with these options, the master weight included. `options` has
// a value for every option of the row.
constexpr size_t CountStateArrays(const OptimizerRow& row, std::span<const double> options) {
  size_t arrays = 1;
  for (const StateArray& array : row.arrays) {
    arrays += array.needs == kNoOption || options[array.needs] != 0;
  }
  return arrays;
}

// The most that CountStateArrays returns: AdamW with amsgrad.
inline constexpr uint32_t kStateArraysMax = 4;

// The optimizer of a job.
struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdamW;  // one of the table
  Options options = {0, 0};                    // a value for every option of the kind's row
};

// fp32 arrays per parameter of its jobs, the master weight included.
inline uint32_t StateArrayCount(const Optimizer& optimizer) {
  return static_cast<uint32_t>(CountStateArrays(*FindOptimizer(optimizer.kind), optimizer.options));
}

}  // namespace ballast
