// Adagrad's step for one vector. Per element, every operation rounded once to fp32, fma where
// written, IEEE sqrt and division, after g = fp32(grad) * scale:
//   g = fma(weight_decay, p, g)                       # when weight_decay is not 0
//   s = fma(g, g, s)
//   p = p + (neg_clr * g) / (sqrt(s) + eps)           # raw_numerator: g before its decay
// This is the order of torch 2.13's Adagrad (Duchi, Hazan & Singer, "Adaptive Subgradient Methods")
// with FMA and a correctly rounded sqrt; docs/numerics.md has the oracle. 20 bytes per parameter
// with bf16 or fp16 both ways.
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
class AdagradRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = 2;
  static constexpr size_t kStored = kArrays;

  explicit AdagradRule(const float* scalars) : AdagradRule(ScalarsOf<AdagradScalars>(scalars)) {}

  void Step(F g, F* array) const {
    const F raw = g;
    if (decays_) g = V::Fma(weight_decay_, array[0], g);
    array[1] = V::Fma(g, g, array[1]);
    const F denominator = V::Add(V::Sqrt(array[1]), eps_);
    array[0] = V::Add(array[0], V::Div(V::Mul(neg_clr_, raw_numerator_ ? raw : g), denominator));
  }

 private:
  explicit AdagradRule(const AdagradScalars& k)
      : decays_(k.weight_decay != 0),
        raw_numerator_(k.raw_numerator != 0),
        weight_decay_(V::Set(k.weight_decay)),
        eps_(V::Set(k.eps)),
        neg_clr_(V::Set(k.neg_clr)) {}

  bool decays_, raw_numerator_;
  F weight_decay_, eps_, neg_clr_;
};

struct Adagrad {
  template <class V, class G, class W>
  static uint64_t Run(const RunArgs& args) {
    return RunRule<V, G, W, AdagradRule<V>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
