// Slow, trivially right conversions between fp32 and the 16-bit types, random inputs, and names for
// parameterised tests. The conversions share no code with the kernels.
// Comes from: nothing. Goes to: the tests of optim and reduce. Thread safety: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "common/tensor/dtype.h"
#include "server/simd/isa.h"

namespace ballast::simd {

// GoogleTest prints a parameter of this type by name.
inline void PrintTo(Isa isa, std::ostream* out) { *out << IsaName(isa); }

}  // namespace ballast::simd

namespace ballast {

// Value of a bf16 or fp16 bit pattern, from sign, exponent and fraction.
inline double HalfValue(DType dtype, uint16_t bits) {
  const int fraction_bits = dtype == DType::kBF16 ? 7 : 10;
  const int bias = dtype == DType::kBF16 ? 127 : 15;
  const int exponent_max = dtype == DType::kBF16 ? 255 : 31;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == exponent_max) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// Bits of infinity.
inline uint16_t HalfInf(DType dtype) { return dtype == DType::kBF16 ? 0x7F80 : 0x7C00; }

// Nearest 16-bit value, ties to the even pattern, NaN to the canonical one. Infinity stands for the
// power of two after the largest finite value, as IEEE 754 rounding has it.
inline uint16_t RoundToHalf(DType dtype, float x) {
  if (std::isnan(x)) return dtype == DType::kBF16 ? 0x7FC0 : 0x7E00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double target = std::fabs(static_cast<double>(x));
  const uint16_t inf = HalfInf(dtype);
  const auto value = [&](uint16_t bits) {
    return bits == inf ? 2 * HalfValue(dtype, inf - (1 << (dtype == DType::kBF16 ? 7 : 10)))
                       : HalfValue(dtype, bits);
  };
  const auto magnitude = [&]() -> uint16_t {
    uint16_t low = 0;
    uint16_t high = inf;
    if (target >= value(inf)) return inf;
    while (high - low > 1) {  // value(low) <= target < value(high)
      const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
      (value(middle) <= target ? low : high) = middle;
    }
    const double below = target - value(low);
    const double above = value(high) - target;
    if (below != above) return below < above ? low : high;
    return low % 2 == 0 ? low : high;
  };
  return sign | magnitude();
}

// Element `i` of an array of `dtype` as fp32.
inline float ElementAt(DType dtype, const void* array, size_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(array)[i];
  return static_cast<float>(HalfValue(dtype, static_cast<const uint16_t*>(array)[i]));
}

// Same bits, or both NaN.
inline bool SameFloat(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Bytes of `count` elements of `dtype`, either normally distributed or any bit pattern at all.
inline std::vector<uint8_t> RandomElements(DType dtype, size_t count, bool any_bits, float spread,
                                           std::mt19937* rng) {
  std::vector<uint8_t> bytes(count * DTypeBytes(dtype));
  std::normal_distribution<float> normal(0.0f, spread);
  for (size_t i = 0; i < count; ++i) {
    if (dtype == DType::kF32) {
      const float x =
          any_bits ? std::bit_cast<float>(static_cast<uint32_t>((*rng)())) : normal(*rng);
      __builtin_memcpy(bytes.data() + i * 4, &x, 4);
    } else {
      const uint16_t x =
          any_bits ? static_cast<uint16_t>((*rng)()) : RoundToHalf(dtype, normal(*rng));
      __builtin_memcpy(bytes.data() + i * 2, &x, 2);
    }
  }
  return bytes;
}

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Rounds `p` to element `i` of `weights`; 1 when a finite p becomes Inf.
inline uint64_t ReferenceWeight(DType dtype, float p, void* weights, size_t i) {
  if (dtype == DType::kF32) {
    static_cast<float*>(weights)[i] = p;
    return 0;
  }
  const uint16_t half = RoundToHalf(dtype, p);
  static_cast<uint16_t*>(weights)[i] = half;
  return std::isfinite(p) && (half & 0x7FFF) == HalfInf(dtype);
}

}  // namespace ballast
