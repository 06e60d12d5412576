// One element's step of every optimizer kind, line by line as docs/numerics.md writes it. It shares
// no code with the kernels.
// Comes from: scalars, a gradient and the element's state. Goes to: the tests of kernels, the
// references of the simulator and of the kill storm. Thread safety: pure functions.
#pragma once

#include <cmath>

#include "common/base/check.h"
#include "common/job/optimizer.h"

namespace ballast::optim {

// Steps one element: `k` as in RunArgs, `g` the gradient times its factor, `s` one value per array
// of the job, the master first.
using ReferenceStep = void (*)(const float* k, float g, float* s);

namespace reference {

inline void Sgd(const float* k, float g, float* s) {
  const float weight_decay = k[0], momentum = k[1], grad_weight = k[2], neg_lr = k[3];
  const bool first = k[4] != 0, nesterov = k[5] != 0;
  if (weight_decay != 0) g = std::fma(weight_decay, s[0], g);
  float u = g;
  if (momentum != 0) {
    s[1] = first ? g : std::fma(grad_weight, g, s[1] * momentum);
    u = nesterov ? std::fma(momentum, s[1], g) : s[1];
  }
  s[0] = std::fma(neg_lr, u, s[0]);
}

// AdamW's and Adam's; array 3 is there with amsgrad.
template <bool kL2, bool kAmsgrad>
void Adam(const float* k, float g, float* s) {
  const float decay = k[0], w1 = k[1], b2 = k[2], w2 = k[3], den = k[4], eps = k[5];
  if (!kL2) s[0] = s[0] * decay;
  if (kL2 && decay != 0) g = std::fma(decay, s[0], g);
  const float d = g - s[1];
  s[1] = std::fabs(w1) < 0.5f ? std::fma(w1, d, s[1]) : std::fma(w1 - 1.0f, d, g);
  s[2] = s[2] * b2;
  s[2] = std::fma(w2 * g, g, s[2]);
  float x = s[2];
  if (kAmsgrad) {
    if (std::isnan(s[2])) s[3] = s[2];
    if (!std::isnan(s[3]) && s[3] <= s[2]) s[3] = s[2];
    x = s[3];
  }
  s[0] = s[0] + (k[6] * s[1]) / (std::sqrt(x) / den + eps);
}

inline void Adagrad(const float* k, float g, float* s) {
  const float weight_decay = k[0], eps = k[1], neg_clr = k[2], raw_numerator = k[3], raw = g;
  if (weight_decay != 0) g = std::fma(weight_decay, s[0], g);
  s[1] = std::fma(g, g, s[1]);
  s[0] = s[0] + (neg_clr * (raw_numerator != 0 ? raw : g)) / (std::sqrt(s[1]) + eps);
}

inline void Lion(const float* k, float g, float* s) {
  const float decay = k[0], w1 = k[1], b1 = k[2], w2 = k[3], b2 = k[4], neg_lr = k[5];
  const float c = std::fma(w1, g, s[1] * b1);
  s[0] = s[0] * decay;
  const bool at_zero = c == 0 && k[6] != 0;
  if (c > 0 || (at_zero && !std::signbit(c))) s[0] = s[0] + neg_lr;
  if (c < 0 || (at_zero && std::signbit(c))) s[0] = s[0] - neg_lr;
  s[1] = std::fma(w2, g, s[1] * b2);
}

inline void Delta(const float* k, float u, float* s) { s[0] = std::fma(k[1], u, s[0] * k[0]); }

}  // namespace reference

// The step of a job with this optimizer, which steps in one pass (BALLAST_CHECK).
inline ReferenceStep ReferenceOf(const Optimizer& optimizer) {
  const bool amsgrad = StateArrayCount(optimizer) == 4;
  switch (optimizer.kind) {
    case OptimizerKind::kAdamW:
      return amsgrad ? reference::Adam<false, true> : reference::Adam<false, false>;
    case OptimizerKind::kAdam:
      return amsgrad ? reference::Adam<true, true> : reference::Adam<true, false>;
    case OptimizerKind::kSgd:
      return reference::Sgd;
    case OptimizerKind::kAdagrad:
      return reference::Adagrad;
    case OptimizerKind::kLion:
      return reference::Lion;
    case OptimizerKind::kApplyDelta:
      return reference::Delta;
    default:
      break;
  }
  BALLAST_CHECK(false);
  return nullptr;
}

}  // namespace ballast::optim
