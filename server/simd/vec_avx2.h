// The vector trait of vec_scalar.h over AVX2, FMA and F16C: 8 fp32 lanes, 16 half lanes.
// Comes from: nothing. Goes to: the *_avx2.cc kernel files, which alone have these compiler flags.
// Thread safety: pure functions.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace ballast::simd {
namespace {

struct VecAvx2 {
  using F = __m256;
  using Half = __m256i;
  static constexpr size_t kWidth = 8;

  static F Load(const float* from) { return _mm256_loadu_ps(from); }
  static F LoadBf16(const uint16_t* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static F LoadF16(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void Store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static void StoreHalf(uint16_t* to, Half x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }
  static void Stream(float* to, F x) { _mm256_stream_ps(to, x); }
  static void StreamHalf(uint16_t* to, Half x) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), x);
  }
  static void Fence() { _mm_sfence(); }

  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Sqrt(F x) { return _mm256_sqrt_ps(x); }

  static F Max(F a, F b) {  // max_ps gives b when either is NaN
    return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  static F TurnSign(F x, F by) {
    return _mm256_xor_ps(x, _mm256_and_ps(by, _mm256_set1_ps(-0.0f)));
  }
  static F IfNonzero(F x, F a, F b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_OQ));
  }
  static F IfNumber(F x, F a, F b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
  }

  static Half PackBf16(F low, F high) {
    CanonicalNans(&low, &high);
    // packus works per 128-bit half, so the quarters come out as 0, 2, 1, 3 and are put in order.
    const __m256i packed = _mm256_packus_epi32(RoundBf16(low), RoundBf16(high));
    return _mm256_permute4x64_epi64(packed, 0xD8);
  }
  static Half PackF16(F low, F high) {
    CanonicalNans(&low, &high);
    return _mm256_set_m128i(RoundF16(high), RoundF16(low));
  }
  static bool AnyInfBf16(Half x) { return AnyMagnitude(x, 0x7F80); }
  static bool AnyInfF16(Half x) { return AnyMagnitude(x, 0x7C00); }

 private:
  // NaNs never occur in a sane run: one comparison finds them in both vectors.
  static void CanonicalNans(F* low, F* high) {
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(*low, *high, _CMP_UNORD_Q)) == 0, true)) {
      return;
    }
    *low = CanonicalNan(*low);
    *high = CanonicalNan(*high);
  }
  static F CanonicalNan(F x) {
    const F nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  static __m256i RoundBf16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  }
  static __m128i RoundF16(F x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static bool AnyMagnitude(Half x, short magnitude) {
    const __m256i unsigned_part = _mm256_and_si256(x, _mm256_set1_epi16(0x7FFF));
    const __m256i hit = _mm256_cmpeq_epi16(unsigned_part, _mm256_set1_epi16(magnitude));
    return _mm256_movemask_epi8(hit) != 0;
  }
};

}  // namespace
}  // namespace ballast::simd
