// A kernel's operations on one element: widen, round, scale, square, test. Plain inline functions,
// so that a .cu file can loop over the same source as the host and get the same bits.
// Comes from: pack.cc and cuda/functors.h. Goes to: packed gradients, unpacked weights, norms.
// Every operation is rounded once to fp32; NaN becomes the canonical quiet one when it is rounded
// to 16 bits or scaled. The sum of squares is that of server/reduce: 64 lanes with fma, folded in
// halves. Thread safety: pure functions over the caller's memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define BALLAST_HOST_DEVICE __host__ __device__
#else
#define BALLAST_HOST_DEVICE
#endif

namespace ballast::device {

// Lanes of the sum of squares: lane j takes elements j, j + 64, ... of a tile.
inline constexpr size_t kNormLanes = 64;

BALLAST_HOST_DEVICE inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

BALLAST_HOST_DEVICE inline float FromBits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The three element types: T is the element in memory, Widen is exact, Round goes to the nearest,
// ties to even.
struct F32 {
  using T = float;
  BALLAST_HOST_DEVICE static float Widen(T x) { return x; }
  BALLAST_HOST_DEVICE static T Round(float x) { return x; }
  BALLAST_HOST_DEVICE static bool Finite(T x) { return (BitsOf(x) & 0x7FFFFFFFu) < 0x7F800000u; }
};

struct BF16 {
  using T = uint16_t;
  BALLAST_HOST_DEVICE static float Widen(T x) { return FromBits(static_cast<uint32_t>(x) << 16); }
  BALLAST_HOST_DEVICE static T Round(float x) {
    if (x != x) return 0x7FC0;
    const uint32_t bits = BitsOf(x);
    return static_cast<T>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
  BALLAST_HOST_DEVICE static bool Finite(T x) { return (x & 0x7FFF) < 0x7F80; }
};

struct F16 {
  using T = uint16_t;
  BALLAST_HOST_DEVICE static float Widen(T x) {
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
    const uint32_t magnitude = x & 0x7FFF;
    if (magnitude >= 0x7C00) {  // Inf, or a NaN that becomes quiet
      const uint32_t quiet = magnitude > 0x7C00 ? 0x00400000u : 0u;
      return FromBits(sign | 0x7F800000u | ((magnitude & 0x03FFu) << 13) | quiet);
    }
    if (magnitude >= 0x0400) return FromBits(sign | ((magnitude << 13) + (112u << 23)));
    return FromBits(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
  }
  BALLAST_HOST_DEVICE static T Round(float x) {
    if (x != x) return 0x7E00;
    const uint32_t bits = BitsOf(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x477FF000u) return static_cast<T>(sign | 0x7C00u);  // 65520 and above
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns to steps of 2^-24
      return static_cast<T>(sign | (BitsOf(FromBits(magnitude) + 0.5f) - 0x3F000000u));
    }
    const uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
    return static_cast<T>(sign | ((rounded - (112u << 23)) >> 13));
  }
  BALLAST_HOST_DEVICE static bool Finite(T x) { return (x & 0x7FFF) < 0x7C00; }
};

// x as an element of type To.
template <class From, class To>
BALLAST_HOST_DEVICE typename To::T Cast(typename From::T x) {
  return To::Round(From::Widen(x));
}

// x * scale, formed in fp32 and rounded once more when To has 16 bits. NaN becomes the canonical
// quiet one in fp32, too: processors and GPUs form different payloads.
template <class From, class To>
BALLAST_HOST_DEVICE typename To::T Scale(typename From::T x, float scale) {
  const float scaled = From::Widen(x) * scale;
  return To::Round(scaled == scaled ? scaled : FromBits(0x7FC00000u));
}

// Lane `lane` (below 64) of a tile of `count` elements.
template <class G>
BALLAST_HOST_DEVICE float LaneSumsq(const typename G::T* x, size_t count, size_t lane) {
  float sum = 0.0f;
  for (size_t i = lane; i < count; i += kNormLanes) {
    const float wide = G::Widen(x[i]);
    sum = ::fmaf(wide, wide, sum);
  }
  return sum;
}

// The sum of squares from its 64 lanes, which change.
BALLAST_HOST_DEVICE inline float FoldLanes(float* lanes) {
  for (size_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

// Sum of squares of one tile.
template <class G>
BALLAST_HOST_DEVICE float Sumsq(const typename G::T* x, size_t count) {
  float lanes[kNormLanes];
  for (size_t lane = 0; lane < kNormLanes; ++lane) lanes[lane] = LaneSumsq<G>(x, count, lane);
  return FoldLanes(lanes);
}

// Measurements of one tile of elements.
struct TileFacts {
  float sumsq;
  uint32_t nonfinite;  // Inf and NaN elements
  uint64_t first;      // index of the first of them in the run of tiles, UINT64_MAX without any
};

// Inf and NaN elements: how many, and the first one's index, SIZE_MAX without any.
struct NonfiniteElements {
  uint64_t count = 0;
  size_t first = SIZE_MAX;
  // Takes element `index` in; the order of elements does not matter.
  BALLAST_HOST_DEVICE void Add(size_t index) {
    ++count;
    if (index < first) first = index;
  }
};

template <class G>
BALLAST_HOST_DEVICE NonfiniteElements FindNonfinite(const typename G::T* x, size_t count) {
  NonfiniteElements found;
  for (size_t i = 0; i < count; ++i) {
    if (!G::Finite(x[i])) found.Add(i);
  }
  return found;
}

}  // namespace ballast::device
