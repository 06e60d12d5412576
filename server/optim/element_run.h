// A step over a run of elements, written once over the vector trait V of server/simd/vec_scalar.h,
// the dtypes of gradient and weight, and a rule: the formula of an optimizer for one vector.
//
// One pass over the data does what torch does in four (copy_ 16 -> 32, mul_, step, copy_ 32 -> 16).
// A rule R over V has
//   kArrays                fp32 arrays that it reads, the master weight first
//   kStored                how many of them it writes, from the first on
//   R(const float* k)      from the scalars of RunArgs
//   Step(g, F* array)      one vector: g = fp32(grad) * scale; updates the arrays in place
// Memory traffic per parameter: 4 bytes for each array read and for each written, the gradient and
// the weight. The step is bound by that, so 16-bit weights bypass the cache.
//
// Comes from: RunArgs. Goes to: the kernels_{scalar,avx2,avx512}.cc files, and no other.
// Thread safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/step_args.h"

namespace ballast::optim {
namespace {

// All calls inside are inlined: a file of many kernels is beyond the compiler's own limit for
// inlining, and a call for each vector costs a third of the speed.
#define BALLAST_FLATTEN __attribute__((flatten))

// Below this many elements a run keeps its weights in the cache: draining the write-combining
// buffers would cost more than the saved read for ownership.
constexpr size_t kStreamMinElements = 4096;
constexpr size_t kCacheLineBytes = 64;

// How each dtype is read and written; T is its element in memory.
struct F32 {
  using T = float;
  static constexpr bool kIsHalf = false;
  template <class V>
  static typename V::F Load(const T* from) {
    return V::Load(from);
  }
};

struct BF16 {
  using T = uint16_t;
  static constexpr bool kIsHalf = true;
  static constexpr uint32_t kOverflowBits = 0x7F7F8000u;  // smallest fp32 that rounds to Inf
  template <class V>
  static typename V::F Load(const T* from) {
    return V::LoadBf16(from);
  }
  template <class V>
  static typename V::Half Pack(typename V::F low, typename V::F high) {
    return V::PackBf16(low, high);
  }
  template <class V>
  static bool AnyInf(typename V::Half x) {
    return V::AnyInfBf16(x);
  }
};

struct F16 {
  using T = uint16_t;
  static constexpr bool kIsHalf = true;
  static constexpr uint32_t kOverflowBits = 0x477FF000u;  // 65520
  template <class V>
  static typename V::F Load(const T* from) {
    return V::LoadF16(from);
  }
  template <class V>
  static typename V::Half Pack(typename V::F low, typename V::F high) {
    return V::PackF16(low, high);
  }
  template <class V>
  static bool AnyInf(typename V::Half x) {
    return V::AnyInfF16(x);
  }
};

// No weight output.
struct NoWeight {
  using T = float;
};

// Counts finite values that round to Inf in the 16-bit type. Only called for blocks that hold an
// Inf, which a sane run never has.
template <class W>
__attribute__((noinline)) uint64_t CountOverflow(const float* p, size_t count) {
  uint64_t overflow = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, p + i, sizeof bits);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    overflow += magnitude >= W::kOverflowBits && magnitude < 0x7F800000u;
  }
  return overflow;
}

// Writes two vectors as weights; true when one of them is Inf in 16 bits.
template <class V, class W>
bool StoreWeights(typename W::T* to, typename V::F low, typename V::F high, bool stream) {
  if constexpr (W::kIsHalf) {
    const typename V::Half half = W::template Pack<V>(low, high);
    if (stream) {
      V::StreamHalf(to, half);
    } else {
      V::StoreHalf(to, half);
    }
    return W::template AnyInf<V>(half);
  } else {
    if (stream) {
      V::Stream(to, low);
      V::Stream(to + V::kWidth, high);
    } else {
      V::Store(to, low);
      V::Store(to + V::kWidth, high);
    }
    return false;
  }
}

// Elements to handle before `weight` reaches a cache line, where streaming stores may begin.
template <class T>
size_t HeadElements(const T* weight, size_t count) {
  const size_t past = reinterpret_cast<uintptr_t>(weight) % kCacheLineBytes;
  const size_t head = past == 0 ? 0 : (kCacheLineBytes - past) / sizeof(T);
  return head < count ? head : count;
}

// The step over one run.
template <class V, class G, class W, class Rule>
class ElementRun {
  using F = typename V::F;
  using GradT = typename G::T;
  using WeightT = typename W::T;
  static constexpr bool kHasWeight = !__is_same(W, NoWeight);
  static constexpr size_t kWidth = V::kWidth;
  static constexpr size_t kBlock = 2 * V::kWidth;
  static constexpr size_t kArrays = Rule::kArrays;

 public:
  explicit ElementRun(const RunArgs& a) : rule_(a.k), scale_(V::Set(a.scale)) {}

  uint64_t Run(const RunArgs& a) {
    const auto* grad = static_cast<const GradT*>(a.grad);
    auto* weight = static_cast<WeightT*>(a.weight);
    const bool stream = kHasWeight && a.count >= kStreamMinElements;
    size_t i = 0;
    if (stream) {
      const size_t head = HeadElements(weight, a.count);
      while (i < head) i += Part(a.state, grad, weight, i, head - i);
    }
    i = Blocks(a.state, grad, weight, i, a.count, stream);
    while (i < a.count) i += Part(a.state, grad, weight, i, a.count - i);
    if (stream) V::Fence();
    return overflow_;
  }

 private:
  // One vector of every array, in place; returns the new master.
  F StepVector(float* const* state, size_t i, F grad) const {
    F array[kArrays];
    for (size_t a = 0; a < kArrays; ++a) array[a] = V::Load(state[a] + i);
    rule_.Step(V::Mul(grad, scale_), array);
    for (size_t a = 0; a < Rule::kStored; ++a) V::Store(state[a] + i, array[a]);
    return array[0];
  }

  // Both vectors of a block; returns the new masters in `low` and `high`.
  BALLAST_FLATTEN void StepBlock(float* const* state, const GradT* grad, size_t i, F* low,
                                 F* high) const {
    *low = StepVector(state, i, G::template Load<V>(grad + i));
    *high = StepVector(state, i + kWidth, G::template Load<V>(grad + i + kWidth));
  }

  // Writes the weights of the block at element i, whose masters were just stored.
  BALLAST_FLATTEN void WriteBlock(const float* p, WeightT* weight, size_t i, F low, F high,
                                  bool stream) {
    if constexpr (kHasWeight) {
      const bool any_inf = StoreWeights<V, W>(weight + i, low, high, stream);
      if constexpr (W::kIsHalf) {
        if (__builtin_expect(any_inf, false)) overflow_ += CountOverflow<W>(p + i, kBlock);
      }
    }
  }

  // All whole blocks from `begin` on; returns where they end. The weights of a block are rounded
  // while the next block's divisions run: with AVX2 a fifth more elements per second, since the
  // rounding no longer waits in the scheduler for the end of the longest dependency chain.
  BALLAST_FLATTEN size_t Blocks(float* const* arrays, const GradT* grad, WeightT* weight,
                                size_t begin, size_t count, bool stream) {
    float* state[kArrays];  // a copy that no store can change
    for (size_t a = 0; a < kArrays; ++a) state[a] = arrays[a];
    size_t i = begin;
    if (i + kBlock > count) return i;
    F low, high;
    StepBlock(state, grad, i, &low, &high);
    for (i += kBlock; i + kBlock <= count; i += kBlock) {
      F next_low, next_high;
      StepBlock(state, grad, i, &next_low, &next_high);
      WriteBlock(state[0], weight, i - kBlock, low, high, stream);
      low = next_low;
      high = next_high;
    }
    WriteBlock(state[0], weight, i - kBlock, low, high, stream);
    return i;
  }

  // At most one block of a head or tail, through a zero-padded copy, so that its elements go
  // through the very same instructions. Returns the number of elements.
  __attribute__((noinline)) size_t Part(float* const* arrays, const GradT* grad, WeightT* weight,
                                        size_t begin, size_t left) {
    const size_t count = left < kBlock ? left : kBlock;
    float padded[kArrays][kBlock] = {};
    float* state[kArrays];
    for (size_t a = 0; a < kArrays; ++a) {
      state[a] = padded[a];
      __builtin_memcpy(padded[a], arrays[a] + begin, count * sizeof(float));
    }
    GradT g[kBlock] = {};
    WeightT w[kBlock] = {};
    __builtin_memcpy(g, grad + begin, count * sizeof(GradT));
    F low, high;
    StepBlock(state, g, 0, &low, &high);
    WriteBlock(state[0], w, 0, low, high, false);
    for (size_t a = 0; a < Rule::kStored; ++a) {
      __builtin_memcpy(arrays[a] + begin, padded[a], count * sizeof(float));
    }
    if constexpr (kHasWeight) __builtin_memcpy(weight + begin, w, count * sizeof(WeightT));
    return count;
  }

  Rule rule_;
  F scale_;
  uint64_t overflow_ = 0;
};

// The step of `Rule` with weights of type W, or without any.
template <class V, class G, class W, class Rule>
uint64_t RunRule(const RunArgs& args) {
  if (args.weight == nullptr) return ElementRun<V, G, NoWeight, Rule>(args).Run(args);
  return ElementRun<V, G, W, Rule>(args).Run(args);
}

// The scalars of a kind as its struct S, from RunArgs::k.
template <class S>
S ScalarsOf(const float* k) {
  static_assert(sizeof(S) <= kScalarsMax * sizeof(float));
  S scalars;
  __builtin_memcpy(&scalars, k, sizeof scalars);
  return scalars;
}

}  // namespace
}  // namespace ballast::optim
