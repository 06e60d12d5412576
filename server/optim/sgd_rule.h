// SGD's step for one vector. Per element, every operation rounded once to fp32, fma where written,
// after g = fp32(grad) * scale:
//   g = fma(weight_decay, p, g)                       # when weight_decay is not 0
//   b = first ? g : fma(grad_weight, g, b * momentum) # with momentum
//   u = nesterov ? fma(momentum, b, g) : b            # with momentum; else u = g
//   p = fma(neg_lr, u, p)
// This is the order of torch 2.13's SGD with FMA (Sutskever et al., "On the importance of
// initialization and momentum in deep learning"); docs/numerics.md has the oracle. With bf16 or
// fp16 both ways: 12 bytes per parameter, 20 with momentum.
//
// Comes from: element_run.h. Goes to: kernel_table.h. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/element_run.h"
#include "server/optim/step_args.h"

namespace ballast::optim {
namespace {

// kMomentum: the job has a momentum buffer. The conditions of Step's branches are the same for the
// whole run.
template <class V, bool kMomentum>
class SgdRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = kMomentum ? 2 : 1;
  static constexpr size_t kStored = kArrays;

  explicit SgdRule(const float* scalars) : SgdRule(ScalarsOf<SgdScalars>(scalars)) {}

  void Step(F g, F* array) const {
    if (decays_) g = V::Fma(weight_decay_, array[0], g);
    array[0] = V::Fma(neg_lr_, Direction(g, array), array[0]);
  }

 private:
  explicit SgdRule(const SgdScalars& k)
      : decays_(k.weight_decay != 0),
        has_momentum_(k.momentum != 0),
        first_(k.first != 0),
        nesterov_(k.nesterov != 0),
        weight_decay_(V::Set(k.weight_decay)),
        momentum_(V::Set(k.momentum)),
        grad_weight_(V::Set(k.grad_weight)),
        neg_lr_(V::Set(k.neg_lr)) {}

  // What p moves along; updates the buffer.
  F Direction(F g, F* array) const {
    if constexpr (kMomentum) {
      if (!has_momentum_) return g;
      const F buffer = first_ ? g : V::Fma(grad_weight_, g, V::Mul(array[1], momentum_));
      array[1] = buffer;
      return nesterov_ ? V::Fma(momentum_, buffer, g) : buffer;
    }
    return g;
  }

  bool decays_, has_momentum_, first_, nesterov_;
  F weight_decay_, momentum_, grad_weight_, neg_lr_;
};

template <bool kMomentum>
struct Sgd {
  template <class V, class G, class W>
  static uint64_t Run(const RunArgs& args) {
    return RunRule<V, G, W, SgdRule<V, kMomentum>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
