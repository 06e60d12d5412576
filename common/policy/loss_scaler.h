// The loss scaler as a pure state machine: one step per round, scale in, scale out.
// Comes from: "did this round's gradients overflow". Goes to: the scale of the next backward pass.
// Thread safety: pure functions over plain values.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "ballast/types.h"

namespace ballast {

// The scale never grows beyond this, the largest power of two of fp32: no loss of fp32 could be
// multiplied by more.
inline constexpr double kLossScaleMax = 0x1p127;

// How a job scales its loss. The defaults are DeepSpeed's.
struct LossScalerConfig {
  bool dynamic = true;
  double static_scale = 1;              // the scale when dynamic is false
  int64_t initial_scale_power = 16;     // the first scale is 2 to this power
  int64_t loss_scale_window = 1000;     // clean rounds between two growths
  int64_t hysteresis = 2;               // the scale falls on this overflow after a growth
  bool consecutive_hysteresis = false;  // every clean round refills the hysteresis
  double min_loss_scale = 1;
  PolicyProfile profile = PolicyProfile::kExact;

  bool operator==(const LossScalerConfig&) const = default;
};

// The scaler's memory between rounds.
struct LossScalerState {
  double scale = 1;             // for the next backward pass
  int64_t iteration = 0;        // rounds seen, skipped ones included
  int64_t last_overflow = -1;   // iteration of the newest overflow; -1 before the first
  int64_t hysteresis_left = 1;  // at 1 the next overflow lowers the scale
  uint64_t skipped = 0;         // rounds that overflowed

  bool operator==(const LossScalerState&) const = default;
};

enum class LossScalerEvent {
  kKept,       // clean round; also one that may not grow the scale beyond kLossScaleMax
  kGrew,       // clean round, and the scale doubled
  kSkipped,    // overflow: hysteresis went down, or the scale is static
  kFell,       // overflow, and the scale halved, at most to its minimum
  kAtMinimum,  // overflow at the minimum with no hysteresis left: the job halts
};

struct LossScalerStep {
  LossScalerState state;  // unchanged after kAtMinimum
  LossScalerEvent event = LossScalerEvent::kKept;
  double unscale_by = 1;  // the number that this round's gradients are divided by
};

// Refuses a configuration with kBadHyperparam; the text names value, limit and remedy.
absl::Status CheckLossScaler(const LossScalerConfig& config);

// Returns the state before the first round. The configuration must pass CheckLossScaler.
LossScalerState StartLossScaler(const LossScalerConfig& config);

// Takes one round. `overflow` says that the round's gradients held an infinity or a NaN.
LossScalerStep StepLossScaler(const LossScalerConfig& config, const LossScalerState& state,
                              bool overflow);

}  // namespace ballast
