// See scalars.h. Thread safety: pure functions.
#include "server/optim/scalars.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include "common/base/check.h"

namespace ballast::optim {
namespace {

template <class S>
Scalars Pack(const S& k) {
  static_assert(sizeof k <= sizeof Scalars::value);
  Scalars out = {};
  std::memcpy(out.value, &k, sizeof k);
  out.count = sizeof k / sizeof(float);
  return out;
}

SgdScalars MakeSgdScalars(std::span<const double> options, std::span<const double> hyper,
                          uint64_t step) {
  return {.weight_decay = static_cast<float>(hyper[kSgdWeightDecay]),
          .momentum = static_cast<float>(hyper[kSgdMomentum]),
          .grad_weight = static_cast<float>(1.0 - hyper[kSgdDampening]),
          .neg_lr = static_cast<float>(-hyper[kSgdLr]),
          .first = step == 1 ? 1.0f : 0.0f,
          .nesterov = options[kSgdNesterov] != 0 ? 1.0f : 0.0f};
}

AdagradScalars MakeAdagradScalars(std::span<const double> options, std::span<const double> hyper,
                                  uint64_t step) {
  const double past_steps = static_cast<double>(step) - 1.0;
  const double clr = hyper[kAdagradLr] / (1.0 + past_steps * hyper[kAdagradLrDecay]);
  return {.weight_decay = static_cast<float>(hyper[kAdagradWeightDecay]),
          .eps = static_cast<float>(hyper[kAdagradEps]),
          .neg_clr = static_cast<float>(-clr),
          .raw_numerator = options[kAdagradRawNumerator] != 0 ? 1.0f : 0.0f};
}

LionScalars MakeLionScalars(std::span<const double> options, std::span<const double> hyper) {
  return {.decay = static_cast<float>(1.0 - hyper[kLionLr] * hyper[kLionWeightDecay]),
          .w1 = static_cast<float>(1.0 - hyper[kLionBeta1]),
          .b1 = static_cast<float>(hyper[kLionBeta1]),
          .w2 = static_cast<float>(1.0 - hyper[kLionBeta2]),
          .b2 = static_cast<float>(hyper[kLionBeta2]),
          .neg_lr = static_cast<float>(-hyper[kLionLr]),
          .moves_at_zero = options[kLionMovesAtZero] != 0 ? 1.0f : 0.0f};
}

LambScalars MakeLambScalars(std::span<const double> options, std::span<const double> hyper,
                            uint64_t step) {
  const bool corrects = options[kLambBiasCorrection] != 0;
  const double t = static_cast<double>(step);
  const double bias_correction1 = corrects ? 1.0 - std::pow(hyper[kBeta1], t) : 1.0;
  const double bias_correction2 = corrects ? 1.0 - std::pow(hyper[kBeta2], t) : 1.0;
  double grow_m = 1.0 / bias_correction1;
  double grow_root = 1.0 / std::sqrt(bias_correction2);
  double lr = hyper[kLr];
  if (options[kLambUncorrectedRatio] != 0) {  // the same step but for eps and decay
    lr = lr * std::sqrt(bias_correction2) / bias_correction1;
    grow_m = grow_root = 1.0;
  }
  return {.w1 = static_cast<float>(1.0 - hyper[kBeta1]),
          .b2 = static_cast<float>(hyper[kBeta2]),
          .w2 = static_cast<float>(1.0 - hyper[kBeta2]),
          .grow_m = static_cast<float>(grow_m),
          .grow_root = static_cast<float>(grow_root),
          .eps = static_cast<float>(hyper[kEps]),
          .weight_decay = static_cast<float>(hyper[kWeightDecay]),
          .neg_lr = static_cast<float>(-lr),
          .max_coeff = static_cast<float>(hyper[kLambMaxCoeff]),
          .min_coeff = static_cast<float>(hyper[kLambMinCoeff])};
}

DeltaScalars MakeDeltaScalars(std::span<const double> hyper) {
  return {.decay = static_cast<float>(1.0 - hyper[kDeltaLr] * hyper[kDeltaWeightDecay]),
          .neg_lr = static_cast<float>(-hyper[kDeltaLr])};
}

}  // namespace

AdamWScalars MakeAdamWScalars(double lr, double beta1, double beta2, double eps,
                              double weight_decay, uint64_t step) {
  const double t = static_cast<double>(step);
  const double bias_correction1 = 1.0 - std::pow(beta1, t);
  const double bias_correction2 = 1.0 - std::pow(beta2, t);
  AdamWScalars k;
  k.decay = static_cast<float>(1.0 - lr * weight_decay);
  k.w1 = static_cast<float>(1.0 - beta1);
  k.b2 = static_cast<float>(beta2);
  k.w2 = static_cast<float>(1.0 - beta2);
  // Not sqrt: torch raises to 0.5, and the two differ in the last bit now and then.
  k.den = static_cast<float>(std::pow(bias_correction2, 0.5));
  k.eps = static_cast<float>(eps);
  k.neg_step_size = static_cast<float>(-(lr / bias_correction1));
  return k;
}

Scalars MakeScalars(OptimizerKind kind, std::span<const double> options,
                    std::span<const double> hyper, uint64_t step) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam: {
      AdamWScalars k = MakeAdamWScalars(hyper[kLr], hyper[kBeta1], hyper[kBeta2], hyper[kEps],
                                        hyper[kWeightDecay], step);
      if (kind == OptimizerKind::kAdam) k.decay = static_cast<float>(hyper[kWeightDecay]);
      return Pack(k);
    }
    case OptimizerKind::kSgd:
      return Pack(MakeSgdScalars(options, hyper, step));
    case OptimizerKind::kAdagrad:
      return Pack(MakeAdagradScalars(options, hyper, step));
    case OptimizerKind::kLion:
      return Pack(MakeLionScalars(options, hyper));
    case OptimizerKind::kLamb:
      return Pack(MakeLambScalars(options, hyper, step));
    case OptimizerKind::kApplyDelta:
      return Pack(MakeDeltaScalars(hyper));
    case OptimizerKind::kUnspecified:
      break;
  }
  BALLAST_CHECK(false);
}

size_t ScalarCount(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
      return sizeof(AdamWScalars) / sizeof(float);
    case OptimizerKind::kSgd:
      return sizeof(SgdScalars) / sizeof(float);
    case OptimizerKind::kAdagrad:
      return sizeof(AdagradScalars) / sizeof(float);
    case OptimizerKind::kLion:
      return sizeof(LionScalars) / sizeof(float);
    case OptimizerKind::kLamb:
      return sizeof(LambScalars) / sizeof(float);
    case OptimizerKind::kApplyDelta:
      return sizeof(DeltaScalars) / sizeof(float);
    case OptimizerKind::kUnspecified:
      break;
  }
  BALLAST_CHECK(false);
}

float GradFactor(OptimizerKind kind, std::span<const double> options, float scale) {
  const OptimizerRow* row = FindOptimizer(kind);
  BALLAST_CHECK(row != nullptr);
  for (size_t i = 0; i < row->options.size(); ++i) {
    if (row->options[i].name == std::string_view("maximize") && options[i] != 0) return -scale;
  }
  return scale;
}

}  // namespace ballast::optim
