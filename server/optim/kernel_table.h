// The kernels of one instruction set as a table, and conversions between fp32 and the 16-bit types,
// written once over the vector trait: the first masters of a job come from 16-bit weights, and
// weights are rebuilt from masters without a step.
// Memory traffic of a conversion: 2 + 4 bytes per element (plus 2 or 4 read for ownership).
// Comes from: server/state. Goes to: the kernels_{scalar,avx2,avx512}.cc files, and no other.
// Thread safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/adagrad_rule.h"
#include "server/optim/adam_rule.h"
#include "server/optim/delta_rule.h"
#include "server/optim/element_run.h"
#include "server/optim/lamb_kernel.h"
#include "server/optim/lion_rule.h"
#include "server/optim/sgd_rule.h"
#include "server/optim/step_args.h"

namespace ballast::optim {
namespace {

template <class V, class G>
void Upcast(const void* from, float* to, size_t count) {
  const auto* source = static_cast<const typename G::T*>(from);
  size_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) V::Store(to + i, G::template Load<V>(source + i));
  if (i == count) return;
  typename G::T padded[V::kWidth] = {};
  float widened[V::kWidth];
  __builtin_memcpy(padded, source + i, (count - i) * sizeof(padded[0]));
  V::Store(widened, G::template Load<V>(padded));
  __builtin_memcpy(to + i, widened, (count - i) * sizeof(float));
}

// One block of `2 x kWidth` elements; returns how many finite ones became Inf.
template <class V, class W>
uint64_t DowncastBlock(const float* from, typename W::T* to) {
  const bool any_inf = StoreWeights<V, W>(to, V::Load(from), V::Load(from + V::kWidth), false);
  if constexpr (W::kIsHalf) {
    if (__builtin_expect(any_inf, false)) return CountOverflow<W>(from, 2 * V::kWidth);
  }
  return 0;
}

template <class V, class W>
uint64_t Downcast(const float* from, void* to, size_t count) {
  constexpr size_t kBlock = 2 * V::kWidth;
  auto* target = static_cast<typename W::T*>(to);
  uint64_t overflow = 0;
  size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) overflow += DowncastBlock<V, W>(from + i, target + i);
  if (i == count) return overflow;
  float padded[kBlock] = {};
  typename W::T rounded[kBlock];
  __builtin_memcpy(padded, from + i, (count - i) * sizeof(float));
  overflow += DowncastBlock<V, W>(padded, rounded);
  __builtin_memcpy(target + i, rounded, (count - i) * sizeof(rounded[0]));
  return overflow;
}

// One kernel for every pair of dtypes.
template <class V, class Kernel>
constexpr void FillDtypes(RunFn (*run)[3]) {
  run[0][0] = Kernel::template Run<V, F32, F32>;
  run[0][1] = Kernel::template Run<V, F32, BF16>;
  run[0][2] = Kernel::template Run<V, F32, F16>;
  run[1][0] = Kernel::template Run<V, BF16, F32>;
  run[1][1] = Kernel::template Run<V, BF16, BF16>;
  run[1][2] = Kernel::template Run<V, BF16, F16>;
  run[2][0] = Kernel::template Run<V, F16, F32>;
  run[2][1] = Kernel::template Run<V, F16, BF16>;
  run[2][2] = Kernel::template Run<V, F16, F16>;
}

template <class V>
constexpr KernelTable MakeTable() {
  KernelTable table = {{},
                       {LambSquares<V, F32>, LambSquares<V, BF16>, LambSquares<V, F16>},
                       {Upcast<V, F32>, Upcast<V, BF16>, Upcast<V, F16>},
                       {Downcast<V, F32>, Downcast<V, BF16>, Downcast<V, F16>}};
  FillDtypes<V, Adam<false, false>>(table.run[kRuleAdamW]);
  FillDtypes<V, Adam<false, true>>(table.run[kRuleAdamWAmsgrad]);
  FillDtypes<V, Adam<true, false>>(table.run[kRuleAdam]);
  FillDtypes<V, Adam<true, true>>(table.run[kRuleAdamAmsgrad]);
  FillDtypes<V, Sgd<false>>(table.run[kRuleSgd]);
  FillDtypes<V, Sgd<true>>(table.run[kRuleSgdMomentum]);
  FillDtypes<V, Adagrad>(table.run[kRuleAdagrad]);
  FillDtypes<V, Lion>(table.run[kRuleLion]);
  FillDtypes<V, Lamb>(table.run[kRuleLamb]);
  FillDtypes<V, Delta>(table.run[kRuleDelta]);
  return table;
}

}  // namespace
}  // namespace ballast::optim
