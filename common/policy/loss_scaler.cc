#include "common/policy/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/policy/refusal.h"

namespace ballast {
namespace {

constexpr double kFactor = 2;
constexpr int64_t kMaxInitialPower = 126;

absl::Status CheckDynamic(const LossScalerConfig& config) {
  if (config.initial_scale_power < 0 || config.initial_scale_power > kMaxInitialPower) {
    return Refuse(absl::StrCat("initial_scale_power must be 0 to ", kMaxInitialPower, ", got ",
                               config.initial_scale_power, "; 16 is the default"));
  }
  if (config.loss_scale_window <= 0) {
    return Refuse(absl::StrCat("loss_scale_window must be a positive integer, got ",
                               config.loss_scale_window, "; 1000 is the default"));
  }
  if (config.hysteresis <= 0) {
    return Refuse(absl::StrCat("hysteresis must be a positive integer, got ", config.hysteresis,
                               "; 1 lowers the scale at every overflow"));
  }
  const double initial = std::exp2(static_cast<double>(config.initial_scale_power));
  if (!(config.min_loss_scale > 0) || config.min_loss_scale > initial) {
    return Refuse(absl::StrCat("min_loss_scale must be above 0 and at most the initial scale ",
                               initial, ", got ", config.min_loss_scale,
                               "; lower it or raise initial_scale_power"));
  }
  return absl::OkStatus();
}

LossScalerStep Overflow(const LossScalerConfig& config, LossScalerState state) {
  LossScalerStep step{state, LossScalerEvent::kSkipped, state.scale};
  if (config.dynamic) {
    if (state.hysteresis_left > 1) {
      --step.state.hysteresis_left;
    } else if (state.scale == config.min_loss_scale) {
      step.event = LossScalerEvent::kAtMinimum;
      return step;
    } else {
      step.state.scale = std::max(state.scale / kFactor, config.min_loss_scale);
      step.event = LossScalerEvent::kFell;
    }
  }
  step.state.last_overflow = state.iteration;
  ++step.state.iteration;
  ++step.state.skipped;
  return step;
}

LossScalerStep Clean(const LossScalerConfig& config, LossScalerState state) {
  LossScalerStep step{state, LossScalerEvent::kKept, state.scale};
  ++step.state.iteration;
  if (!config.dynamic) return step;
  const int64_t clean_before = state.iteration - state.last_overflow - 1;
  const bool grows = clean_before > 0 && clean_before % config.loss_scale_window == 0;
  if (grows || config.consecutive_hysteresis) step.state.hysteresis_left = config.hysteresis;
  if (grows && state.scale * kFactor <= kLossScaleMax) {
    step.state.scale *= kFactor;
    step.event = LossScalerEvent::kGrew;
    // Quirk: DeepSpeed divides after its update, so a growth round steps with half the gradient.
    if (config.profile == PolicyProfile::kDeepSpeed) step.unscale_by = step.state.scale;
  }
  return step;
}

}  // namespace

absl::Status CheckLossScaler(const LossScalerConfig& config) {
  if (config.dynamic) return CheckDynamic(config);
  if (!(config.static_scale > 0) || !std::isfinite(config.static_scale)) {
    return Refuse(absl::StrCat("loss_scale must be a finite number above 0, got ",
                               config.static_scale, "; 1 scales nothing"));
  }
  return absl::OkStatus();
}

LossScalerState StartLossScaler(const LossScalerConfig& config) {
  LossScalerState state;
  if (!config.dynamic) {
    state.scale = config.static_scale;
    return state;
  }
  state.scale = std::exp2(static_cast<double>(config.initial_scale_power));
  state.hysteresis_left = config.hysteresis;
  return state;
}

LossScalerStep StepLossScaler(const LossScalerConfig& config, const LossScalerState& state,
                              bool overflow) {
  return overflow ? Overflow(config, state) : Clean(config, state);
}

}  // namespace ballast
