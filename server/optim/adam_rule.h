// The fused AdamW step, written once over the vector trait V of server/simd/vec_scalar.h.
//
// One pass over the data does what torch does in four (copy_ 16 -> 32, mul_, step, copy_ 32 -> 16).
// Per element, every operation rounded once to fp32, fma where written, IEEE sqrt and division:
//   g = fp32(grad) * scale
//   p = p * decay
//   d = g - m;  m = |w1| < 1/2 ? fma(w1, d, m) : fma(w1 - 1, d, g)
//   v = v * b2; v = fma(w2 * g, g, v)
//   p = p + (neg_step_size * m) / (sqrt(v) / den + eps)
//   weight = round(p)
// This is the order of torch 2.13's AdamW (Loshchilov & Hutter, "Decoupled Weight Decay
// Regularization", Algorithm 2) with FMA and a correctly rounded sqrt; docs/numerics.md has the
// oracles. Memory traffic per parameter: read 12 + gradient, write 12 + weight bytes; 28 for bf16
// or fp16 both ways. The step is bound by that, so 16-bit weights bypass the cache.
//
// Comes from: StepArgs. Goes to: the adamw_{scalar,avx2,avx512}.cc files, and no other.
// Thread safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/optim/step_args.h"

namespace ballast::optim {
namespace {

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

// The step over one run. kFarLerp selects the form of m for |w1| >= 1/2, as torch's lerp does.
template <class V, class G, class W, bool kFarLerp>
class AdamWRun {
  using F = typename V::F;
  using GradT = typename G::T;
  using WeightT = typename W::T;
  static constexpr bool kHasWeight = !__is_same(W, NoWeight);
  static constexpr size_t kWidth = V::kWidth;
  static constexpr size_t kBlock = 2 * V::kWidth;

 public:
  explicit AdamWRun(const StepArgs& a)
      : scale_(V::Set(a.scale)),
        decay_(V::Set(a.k.decay)),
        lerp_(V::Set(kFarLerp ? a.k.w1 - 1.0f : a.k.w1)),
        b2_(V::Set(a.k.b2)),
        w2_(V::Set(a.k.w2)),
        den_(V::Set(a.k.den)),
        eps_(V::Set(a.k.eps)),
        neg_step_size_(V::Set(a.k.neg_step_size)) {}

  uint64_t Run(const StepArgs& a) {
    float* p = a.p;
    float* m = a.m;
    float* v = a.v;
    const GradT* grad = static_cast<const GradT*>(a.grad);
    WeightT* weight = static_cast<WeightT*>(a.weight);
    const size_t count = a.count;
    const bool stream = kHasWeight && count >= kStreamMinElements;
    size_t i = 0;
    if (stream) {
      const size_t head = HeadElements(weight, count);
      while (i < head) i += Part(p, m, v, grad, weight, i, head - i);
    }
    i = Blocks(p, m, v, grad, weight, i, count, stream);
    while (i < count) i += Part(p, m, v, grad, weight, i, count - i);
    if (stream) V::Fence();
    return overflow_;
  }

 private:
  // One vector of p, m, v in place; returns the new p.
  F StepVector(float* p, float* m, float* v, F grad) const {
    const F g = V::Mul(grad, scale_);
    const F decayed = V::Mul(V::Load(p), decay_);
    const F m_old = V::Load(m);
    const F d = V::Sub(g, m_old);
    const F m_new = V::Fma(lerp_, d, kFarLerp ? g : m_old);
    const F v_new = V::Fma(V::Mul(w2_, g), g, V::Mul(V::Load(v), b2_));
    const F denominator = V::Add(V::Div(V::Sqrt(v_new), den_), eps_);
    const F p_new = V::Add(decayed, V::Div(V::Mul(neg_step_size_, m_new), denominator));
    V::Store(p, p_new);
    V::Store(m, m_new);
    V::Store(v, v_new);
    return p_new;
  }

  // Both vectors of a block; returns the new p in `low` and `high`.
  void StepBlock(float* p, float* m, float* v, const GradT* grad, F* low, F* high) const {
    *low = StepVector(p, m, v, G::template Load<V>(grad));
    *high = StepVector(p + kWidth, m + kWidth, v + kWidth, G::template Load<V>(grad + kWidth));
  }

  // Writes the weights of the block at element i, whose masters were just stored.
  void WriteBlock(const float* p, WeightT* weight, size_t i, F low, F high, bool stream) {
    if constexpr (kHasWeight) {
      const bool any_inf = StoreWeights<V, W>(weight + i, low, high, stream);
      if constexpr (W::kIsHalf) {
        if (__builtin_expect(any_inf, false)) overflow_ += CountOverflow<W>(p + i, kBlock);
      }
    }
  }

  // All whole blocks from `begin` on; returns where they end. The weights of a block are rounded
  // while the next block's divisions run: in AVX2 that is a fifth more elements per second, since
  // the rounding no longer waits in the scheduler for the end of the longest dependency chain.
  size_t Blocks(float* p, float* m, float* v, const GradT* grad, WeightT* weight, size_t begin,
                size_t count, bool stream) {
    size_t i = begin;
    if (i + kBlock > count) return i;
    F low, high;
    StepBlock(p + i, m + i, v + i, grad + i, &low, &high);
    for (i += kBlock; i + kBlock <= count; i += kBlock) {
      F next_low, next_high;
      StepBlock(p + i, m + i, v + i, grad + i, &next_low, &next_high);
      WriteBlock(p, weight, i - kBlock, low, high, stream);
      low = next_low;
      high = next_high;
    }
    WriteBlock(p, weight, i - kBlock, low, high, stream);
    return i;
  }

  // At most one block of a head or tail, through a zero-padded copy, so that its elements go
  // through the very same instructions. Returns how many elements that were.
  __attribute__((noinline)) size_t Part(float* p, float* m, float* v, const GradT* grad,
                                        WeightT* weight, size_t begin, size_t left) {
    const size_t count = left < kBlock ? left : kBlock;
    float state[3][kBlock] = {};
    GradT g[kBlock] = {};
    WeightT w[kBlock] = {};
    __builtin_memcpy(state[0], p + begin, count * sizeof(float));
    __builtin_memcpy(state[1], m + begin, count * sizeof(float));
    __builtin_memcpy(state[2], v + begin, count * sizeof(float));
    __builtin_memcpy(g, grad + begin, count * sizeof(GradT));
    F low, high;
    StepBlock(state[0], state[1], state[2], g, &low, &high);
    WriteBlock(state[0], w, 0, low, high, false);
    __builtin_memcpy(p + begin, state[0], count * sizeof(float));
    __builtin_memcpy(m + begin, state[1], count * sizeof(float));
    __builtin_memcpy(v + begin, state[2], count * sizeof(float));
    if constexpr (kHasWeight) __builtin_memcpy(weight + begin, w, count * sizeof(WeightT));
    return count;
  }

  F scale_, decay_, lerp_, b2_, w2_, den_, eps_, neg_step_size_;
  uint64_t overflow_ = 0;
};

template <class V, class G, class W>
uint64_t AdamWWithWeight(const StepArgs& args) {
  const float w1 = args.k.w1 < 0 ? -args.k.w1 : args.k.w1;
  if (w1 < 0.5f) return AdamWRun<V, G, W, false>(args).Run(args);
  return AdamWRun<V, G, W, true>(args).Run(args);
}

template <class V, class G, class W>
uint64_t AdamW(const StepArgs& args) {
  if (args.weight == nullptr) return AdamWWithWeight<V, G, NoWeight>(args);
  return AdamWWithWeight<V, G, W>(args);
}

}  // namespace
}  // namespace ballast::optim
