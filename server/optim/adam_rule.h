// The step of AdamW and Adam for one vector. Per element, every operation rounded once to fp32, fma
// where written, IEEE sqrt and division, after g = fp32(grad) * scale:
//   p = p * decay                                     # AdamW
//   g = fma(weight_decay, p, g)                       # Adam, when weight_decay is not 0
//   d = g - m;  m = |w1| < 1/2 ? fma(w1, d, m) : fma(w1 - 1, d, g)
//   v = v * b2; v = fma(w2 * g, g, v)
//   x = v;  with amsgrad: x = vmax = max(vmax, v)     # NaN when one of them is
//   p = p + (neg_step_size * m) / (sqrt(x) / den + eps)
// This is the order of torch 2.13's AdamW and Adam (Loshchilov & Hutter, "Decoupled Weight Decay
// Regularization", Algorithm 2) with FMA and a correctly rounded sqrt; docs/numerics.md has the
// oracles. 28 bytes per parameter with bf16 or fp16 both ways, 36 with amsgrad.
//
// Comes from: element_run.h. Goes to: kernel_table.h. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/element_run.h"
#include "server/optim/step_args.h"

namespace ballast::optim {
namespace {

// kFarLerp selects the form of m for |w1| >= 1/2, as torch's lerp does. kL2: Adam, whose decay is
// part of the gradient.
template <class V, bool kL2, bool kAmsgrad, bool kFarLerp>
class AdamRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = kAmsgrad ? 4 : 3;
  static constexpr size_t kStored = kArrays;

  explicit AdamRule(const float* scalars) : AdamRule(ScalarsOf<AdamWScalars>(scalars)) {}

  void Step(F g, F* array) const {
    F p = array[0];
    if constexpr (kL2) {
      if (decays_) g = V::Fma(decay_, p, g);
    } else {
      p = V::Mul(p, decay_);
    }
    const F d = V::Sub(g, array[1]);
    const F m = V::Fma(lerp_, d, kFarLerp ? g : array[1]);
    const F v = V::Fma(V::Mul(w2_, g), g, V::Mul(array[2], b2_));
    F x = v;
    if constexpr (kAmsgrad) array[3] = x = V::Max(array[3], v);
    const F denominator = V::Add(V::Div(V::Sqrt(x), den_), eps_);
    array[0] = V::Add(p, V::Div(V::Mul(neg_step_size_, m), denominator));
    array[1] = m;
    array[2] = v;
  }

 private:
  explicit AdamRule(const AdamWScalars& k)
      : decays_(k.decay != 0),
        decay_(V::Set(k.decay)),
        lerp_(V::Set(kFarLerp ? k.w1 - 1.0f : k.w1)),
        b2_(V::Set(k.b2)),
        w2_(V::Set(k.w2)),
        den_(V::Set(k.den)),
        eps_(V::Set(k.eps)),
        neg_step_size_(V::Set(k.neg_step_size)) {}

  bool decays_;
  F decay_, lerp_, b2_, w2_, den_, eps_, neg_step_size_;
};

template <bool kL2, bool kAmsgrad>
struct Adam {
  template <class V, class G, class W>
  static uint64_t Run(const RunArgs& args) {
    const float w1 = ScalarsOf<AdamWScalars>(args.k).w1;
    if (w1 < 0.5f && w1 > -0.5f) return RunRule<V, G, W, AdamRule<V, kL2, kAmsgrad, false>>(args);
    return RunRule<V, G, W, AdamRule<V, kL2, kAmsgrad, true>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
