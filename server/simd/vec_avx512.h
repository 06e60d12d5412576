// The vector trait of vec_scalar.h over AVX-512 F, BW, DQ, VL: 16 fp32 lanes, 32 half lanes.
// The native bf16 conversion is not used: it flushes denormals, which the other paths keep.
// Comes from: nothing. Goes to: the *_avx512.cc kernel files, which alone have these compiler
// flags. Thread safety: pure functions.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ballast::simd {
namespace {

struct VecAvx512 {
  using F = __m512;
  using Half = __m512i;
  static constexpr size_t kWidth = 16;

  static F Load(const float* from) { return _mm512_loadu_ps(from); }
  static F LoadBf16(const uint16_t* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static F LoadF16(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void Store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static void StoreHalf(uint16_t* to, Half x) { _mm512_storeu_si512(to, x); }
  static void Stream(float* to, F x) { _mm512_stream_ps(to, x); }
  static void StreamHalf(uint16_t* to, Half x) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), x);
  }
  static void Fence() { _mm_sfence(); }

  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Sqrt(F x) { return _mm512_sqrt_ps(x); }

  static F Max(F a, F b) {  // max_ps gives b when either is NaN
    return _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
  }
  static F TurnSign(F x, F by) {
    return _mm512_xor_ps(x, _mm512_and_ps(by, _mm512_set1_ps(-0.0f)));
  }
  static F IfNonzero(F x, F a, F b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_OQ), a);
  }
  static F IfNumber(F x, F a, F b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), a);
  }

  static Half PackBf16(F low, F high) {
    return _mm512_permutex2var_epi16(RoundBf16(low), OddHalves(), RoundBf16(high));
  }
  static Half PackF16(F low, F high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(RoundF16(low)), RoundF16(high), 1);
  }
  static bool AnyInfBf16(Half x) { return AnyMagnitude(x, 0x7F80); }
  static bool AnyInfF16(Half x) { return AnyMagnitude(x, 0x7C00); }

 private:
  // Indices of the upper 16 bits of each 32-bit lane of two vectors: 1, 3, ..., 63.
  static __m512i OddHalves() {
    alignas(64) static constexpr uint16_t kIndex[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                        23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                        45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_load_si512(kIndex);
  }
  static F CanonicalNan(F x) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(x, is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
  }
  // The rounded value is left in the upper 16 bits of each lane.
  static __m512i RoundBf16(F x) {
    const __m512i bits = _mm512_castps_si512(CanonicalNan(x));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  }
  static __m256i RoundF16(F x) {
    return _mm512_cvtps_ph(CanonicalNan(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static bool AnyMagnitude(Half x, short magnitude) {
    const __m512i unsigned_part = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    return _mm512_cmpeq_epi16_mask(unsigned_part, _mm512_set1_epi16(magnitude)) != 0;
  }
};

}  // namespace
}  // namespace ballast::simd
