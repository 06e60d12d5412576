// Lion's step for one vector. Per element, every operation rounded once to fp32, fma where written,
// after g = fp32(grad) * scale:
//   c = fma(w1, g, m * b1)
//   p = p * decay;  p = p + neg_lr * sign(c)          # sign(0) = sign(NaN) = 0: p only decays;
//                                                     # moves_at_zero: sign(+-0) = +-1
//   m = fma(w2, g, m * b2)
// Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", Program 1. 20 bytes per
// parameter with bf16 or fp16 both ways.
//
// Comes from: element_run.h. Goes to: kernel_table.h. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/element_run.h"
#include "server/optim/step_args.h"

namespace ballast::optim {
namespace {

template <class V>
class LionRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = 2;
  static constexpr size_t kStored = kArrays;

  explicit LionRule(const float* scalars) : LionRule(ScalarsOf<LionScalars>(scalars)) {}

  void Step(F g, F* array) const {
    const F c = V::Fma(w1_, g, V::Mul(array[1], b1_));
    const F p = V::Mul(array[0], decay_);
    const F moved = V::Add(p, V::TurnSign(neg_lr_, c));
    array[0] = moves_at_zero_ ? V::IfNumber(c, moved, p) : V::IfNonzero(c, moved, p);
    array[1] = V::Fma(w2_, g, V::Mul(array[1], b2_));
  }

 private:
  explicit LionRule(const LionScalars& k)
      : moves_at_zero_(k.moves_at_zero != 0),
        decay_(V::Set(k.decay)),
        w1_(V::Set(k.w1)),
        b1_(V::Set(k.b1)),
        w2_(V::Set(k.w2)),
        b2_(V::Set(k.b2)),
        neg_lr_(V::Set(k.neg_lr)) {}

  bool moves_at_zero_;
  F decay_, w1_, b1_, w2_, b2_, neg_lr_;
};

struct Lion {
  template <class V, class G, class W>
  static uint64_t Run(const RunArgs& args) {
    return RunRule<V, G, W, LionRule<V>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
