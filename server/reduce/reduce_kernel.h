// The slot-order sum and the 64-lane norm, written once over the vector trait V of
// server/simd/vec_scalar.h. Every operation is rounded once to fp32:
//   sum:  a = fp32(g[0]); a = a + fp32(g[r]) for r = 1 .. slots - 1; an absent slot counts as +0.0
//   norm: lane[j] = fma(x, x, lane[j]) for x = element j, j + 64, ... of the tile;
//         lane[i] = lane[i] + lane[i + h] for h = 32, 16, 8, 4, 2, 1; the result is lane[0]
// The order is fixed by slot and index, so the bits depend on neither arrival, threads nor ISA.
// Memory traffic per parameter: slots x gradient bytes read, 4 written; the fused norm reads the
// sum from registers, and the norm alone reads the gradient bytes once.
//
// Comes from: SumArgs. Goes to: the reduce_{scalar,avx2,avx512}.cc files, and no other.
// Thread safety: pure functions over the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/reduce/kernel_args.h"
#include "server/simd/square_lanes.h"

namespace ballast::reduce {
namespace {

static_assert(kNormLanes == simd::kSquareLanes);

constexpr size_t kCacheLineBytes = 64;

// How each dtype is read; T is its element in memory, kInfBits the magnitude of its infinity.
struct F32 {
  using T = float;
  using Bits = uint32_t;
  static constexpr Bits kMagnitude = 0x7FFFFFFFu;
  static constexpr Bits kInfBits = 0x7F800000u;
  template <class V>
  static typename V::F Load(const T* from) {
    return V::Load(from);
  }
};

struct BF16 {
  using T = uint16_t;
  using Bits = uint16_t;
  static constexpr Bits kMagnitude = 0x7FFFu;
  static constexpr Bits kInfBits = 0x7F80u;
  template <class V>
  static typename V::F Load(const T* from) {
    return V::LoadBf16(from);
  }
};

struct F16 {
  using T = uint16_t;
  using Bits = uint16_t;
  static constexpr Bits kMagnitude = 0x7FFFu;
  static constexpr Bits kInfBits = 0x7C00u;
  template <class V>
  static typename V::F Load(const T* from) {
    return V::LoadF16(from);
  }
};

// Vectors that one step of the loops keeps in registers: with the norm's lanes they fit 16.
constexpr size_t kGroup = 4;

template <class G>
uint64_t CountNonfinite(const typename G::T* x, size_t count) {
  uint64_t nonfinite = 0;
  for (size_t i = 0; i < count; ++i) {
    typename G::Bits bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    nonfinite += (bits & G::kMagnitude) >= G::kInfBits;
  }
  return nonfinite;
}

// A non-finite element makes the sum of squares non-finite, so elements are counted only then.
template <class G>
TileNorm MakeTileNorm(float sumsq, const typename G::T* x, size_t count) {
  const bool finite = sumsq - sumsq == 0.0f;
  return {sumsq, finite ? 0 : CountNonfinite<G>(x, count)};
}

// The slots' contributions to 64 elements. SumArgs with the element type.
template <class V, class G>
class Slots {
  using T = typename G::T;

 public:
  explicit Slots(const SumArgs& a) : a_(a) {}

  // Sum of kGroup vectors from element `index` on, relative to SumArgs::begin.
  void Sum(size_t index, typename V::F* sum) const {
    const typename V::F zero = V::Set(0.0f);
    const T* first = Slot(0);
    for (size_t j = 0; j < kGroup; ++j) {
      sum[j] = first ? G::template Load<V>(first + index + j * V::kWidth) : zero;
    }
    for (size_t slot = 1; slot < a_.slots; ++slot) {
      if (const T* grad = Slot(slot)) {
        for (size_t j = 0; j < kGroup; ++j) {
          sum[j] = V::Add(sum[j], G::template Load<V>(grad + index + j * V::kWidth));
        }
      } else {
        for (size_t j = 0; j < kGroup; ++j) sum[j] = V::Add(sum[j], zero);
      }
    }
  }

  // The same for one element of a tail.
  float SumOne(size_t index) const {
    T padded[V::kWidth] = {};
    float sums[V::kWidth];
    typename V::F sum = V::Set(0.0f);
    for (size_t slot = 0; slot < a_.slots; ++slot) {
      const T* grad = Slot(slot);
      padded[0] = grad ? grad[index] : T{0};
      const typename V::F x = G::template Load<V>(padded);
      sum = slot == 0 ? x : V::Add(sum, x);
    }
    V::Store(sums, sum);
    return sums[0];
  }

 private:
  // The slot's first element, or null when it contributes nothing.
  const T* Slot(size_t slot) const {
    const T* grad = static_cast<const T*>(a_.grads[slot]);
    const bool absent = grad == nullptr || (a_.present != nullptr && a_.present[slot] == 0);
    return absent ? nullptr : grad + a_.begin;
  }

  const SumArgs& a_;
};

template <class V, class G>
void Sum(const SumArgs& args) {
  constexpr size_t kStep = kGroup * V::kWidth;
  const Slots<V, G> slots(args);
  size_t i = 0;
  for (; i + kStep <= args.count; i += kStep) {
    typename V::F sum[kGroup];
    slots.Sum(i, sum);
    for (size_t j = 0; j < kGroup; ++j) V::Store(args.sum + i + j * V::kWidth, sum[j]);
  }
  for (; i < args.count; ++i) args.sum[i] = slots.SumOne(i);
}

// 64 elements of the fused sum and norm. Streams the sum past the cache where it is next read after
// the vote.
template <class V, class G>
void SumBlock(const Slots<V, G>& slots, size_t begin, float* out, bool stream,
              simd::SquareLanes<V>* lanes) {
  constexpr size_t kStep = kGroup * V::kWidth;
  for (size_t i = 0; i < kNormLanes; i += kStep) {
    typename V::F sum[kGroup];
    slots.Sum(begin + i, sum);
    for (size_t j = 0; j < kGroup; ++j) {
      lanes->Add(i / V::kWidth + j, sum[j]);
      float* to = out + begin + i + j * V::kWidth;
      if (stream) {
        V::Stream(to, sum[j]);
      } else {
        V::Store(to, sum[j]);
      }
    }
  }
}

template <class V>
void AddTail(const float* x, size_t count, simd::SquareLanes<V>* lanes) {
  float padded[kNormLanes] = {};
  __builtin_memcpy(padded, x, count * sizeof(float));
  for (size_t i = 0; i < kNormLanes; i += V::kWidth) lanes->Add(i / V::kWidth, V::Load(padded + i));
}

template <class V, class G>
TileNorm SumTile(const SumArgs& args) {
  const Slots<V, G> slots(args);
  const bool aligned = reinterpret_cast<uintptr_t>(args.sum) % kCacheLineBytes == 0;
  const bool stream = aligned && !args.sum_is_read;
  simd::SquareLanes<V> lanes;
  size_t i = 0;
  for (; i + kNormLanes <= args.count; i += kNormLanes) {
    SumBlock(slots, i, args.sum, stream, &lanes);
  }
  const size_t tail = i;
  for (; i < args.count; ++i) args.sum[i] = slots.SumOne(i);
  if (tail < args.count) AddTail(args.sum + tail, args.count - tail, &lanes);
  if (stream) V::Fence();
  return MakeTileNorm<F32>(lanes.Fold(), args.sum, args.count);
}

template <class V, class G>
TileNorm NormTile(const void* x, size_t count) {
  const auto* from = static_cast<const typename G::T*>(x);
  simd::SquareLanes<V> lanes;
  size_t i = 0;
  for (; i + kNormLanes <= count; i += kNormLanes) {
    for (size_t j = 0; j < kNormLanes; j += V::kWidth) {
      lanes.Add(j / V::kWidth, G::template Load<V>(from + i + j));
    }
  }
  if (i < count) {
    typename G::T padded[kNormLanes] = {};
    __builtin_memcpy(padded, from + i, (count - i) * sizeof(padded[0]));
    for (size_t j = 0; j < kNormLanes; j += V::kWidth) {
      lanes.Add(j / V::kWidth, G::template Load<V>(padded + j));
    }
  }
  return MakeTileNorm<G>(lanes.Fold(), from, count);
}

template <class V>
constexpr KernelTable MakeTable() {
  return {{Sum<V, F32>, Sum<V, BF16>, Sum<V, F16>},
          {SumTile<V, F32>, SumTile<V, BF16>, SumTile<V, F16>},
          {NormTile<V, F32>, NormTile<V, BF16>, NormTile<V, F16>}};
}

}  // namespace
}  // namespace ballast::reduce
