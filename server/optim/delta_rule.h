// The step of apply_delta for one vector: trainers push an update that an optimizer of their own
// made. Per element, every operation rounded once to fp32, fma where written, after
// u = fp32(grad) * scale:
//   p = fma(neg_lr, u, p * decay)
// 12 bytes per parameter with bf16 or fp16 both ways.
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
class DeltaRule {
  using F = typename V::F;

 public:
  static constexpr size_t kArrays = 1;
  static constexpr size_t kStored = kArrays;

  explicit DeltaRule(const float* scalars) : DeltaRule(ScalarsOf<DeltaScalars>(scalars)) {}

  void Step(F u, F* array) const { array[0] = V::Fma(neg_lr_, u, V::Mul(array[0], decay_)); }

 private:
  explicit DeltaRule(const DeltaScalars& k) : decay_(V::Set(k.decay)), neg_lr_(V::Set(k.neg_lr)) {}

  F decay_, neg_lr_;
};

struct Delta {
  template <class V, class G, class W>
  static uint64_t Run(const RunArgs& args) {
    return RunRule<V, G, W, DeltaRule<V>>(args);
  }
};

}  // namespace
}  // namespace ballast::optim
