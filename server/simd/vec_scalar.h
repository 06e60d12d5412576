// The vector trait at width 1, in plain C++: the oracle that the AVX paths must match bit for bit.
// Comes from: nothing. Goes to: the *_scalar.cc kernel files, and no other.
// The trait's contract is the same in vec_scalar.h, vec_avx2.h and vec_avx512.h; it is written
// here. Everything is in an anonymous namespace: an inline function with linkage, compiled under
// one file's ISA flags, could become the copy that the whole program calls. Thread safety: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast::simd {
namespace {

struct VecScalar {
  using F = float;  // kWidth fp32 lanes
  struct Half {     // 2 x kWidth 16-bit lanes
    uint16_t low, high;
  };
  static constexpr size_t kWidth = 1;

  static uint32_t Bits(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static float FromBits(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }

  // Loads and stores of kWidth elements, at any element boundary. bf16 and fp16 widen exactly.
  static F Load(const float* from) { return *from; }
  static F LoadBf16(const uint16_t* from) { return FromBits(static_cast<uint32_t>(*from) << 16); }
  static F LoadF16(const uint16_t* from) { return WidenF16(*from); }
  static void Store(float* to, F x) { *to = x; }
  static void StoreHalf(uint16_t* to, Half x) {
    to[0] = x.low;
    to[1] = x.high;
  }
  // Stores that bypass the cache; `to` must be aligned to the vector. Fence() orders them before
  // whatever publishes the buffer.
  static void Stream(float* to, F x) { *to = x; }
  static void StreamHalf(uint16_t* to, Half x) { StoreHalf(to, x); }
  static void Fence() {}

  // One IEEE operation each, round to nearest even; Fma rounds once.
  static F Set(float x) { return x; }
  static F Add(F a, F b) { return a + b; }
  static F Sub(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
  static F Div(F a, F b) { return a / b; }
  static F Fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  static F Sqrt(F x) { return __builtin_sqrtf(x); }

  // The larger of both; b when they are equal, NaN when one of them is.
  static F Max(F a, F b) { return a != a || a > b ? a : b; }
  // x with its sign turned where the sign bit of `by` is set.
  static F TurnSign(F x, F by) { return FromBits(Bits(x) ^ (Bits(by) & 0x80000000u)); }
  // a where x is neither 0 nor NaN, else b.
  static F IfNonzero(F x, F a, F b) { return x < 0 || x > 0 ? a : b; }
  // a where x is not NaN, else b.
  static F IfNumber(F x, F a, F b) { return x == x ? a : b; }

  // Rounds two vectors to 2 x kWidth 16-bit values, nearest even; every NaN becomes the canonical
  // positive quiet one, values beyond the largest finite one become Inf.
  static Half PackBf16(F low, F high) { return {RoundBf16(low), RoundBf16(high)}; }
  static Half PackF16(F low, F high) { return {RoundF16(low), RoundF16(high)}; }
  // True when any of the 2 x kWidth lanes is infinite.
  static bool AnyInfBf16(Half x) {
    return (x.low & 0x7FFF) == 0x7F80 || (x.high & 0x7FFF) == 0x7F80;
  }
  static bool AnyInfF16(Half x) {
    return (x.low & 0x7FFF) == 0x7C00 || (x.high & 0x7FFF) == 0x7C00;
  }

 private:
  static float WidenF16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t magnitude = half & 0x7FFF;
    if (magnitude >= 0x7C00) {  // Inf, or a NaN that widening makes quiet as the hardware does
      const uint32_t quiet = magnitude > 0x7C00 ? 0x00400000u : 0u;
      return FromBits(sign | 0x7F800000u | ((magnitude & 0x03FFu) << 13) | quiet);
    }
    if (magnitude >= 0x0400) return FromBits(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return FromBits(sign | Bits(subnormal));
  }
  static uint16_t RoundBf16(float x) {
    if (x != x) return 0x7FC0;
    const uint32_t bits = Bits(x);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  }
  static uint16_t RoundF16(float x) {
    if (x != x) return 0x7E00;
    const uint32_t bits = Bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the value to steps of 2^-24
      const uint32_t aligned = Bits(FromBits(magnitude) + 0.5f) - 0x3F000000u;
      return static_cast<uint16_t>(sign | aligned);
    }
    const uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
  }
};

}  // namespace
}  // namespace ballast::simd
