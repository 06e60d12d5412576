// The yardstick in AVX-512; see kernel_roofline.h. All loads of a block come before its stores, as
// in the kernel: a load that follows a store to the same offset of another plane waits for it.
// Thread safety: pure functions.
#include "bench/kernel_roofline.h"

#include <immintrin.h>

namespace ballast::bench {

void RooflineAvx512(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                    size_t count) {
  alignas(64) uint16_t odd[32];
  for (uint16_t i = 0; i < 32; ++i) odd[i] = static_cast<uint16_t>(2 * i + 1);
  const __m512i odd_halves = _mm512_load_si512(odd);
  const __m512i low_bits = _mm512_set1_epi32(7);
  for (size_t i = 0; i < count; i += 32) {
    const __m512i flip = _mm512_and_si512(_mm512_loadu_si512(grad + i), low_bits);
    const __m512i p0 = _mm512_xor_si512(_mm512_loadu_si512(p + i), flip);
    const __m512i m0 = _mm512_xor_si512(_mm512_loadu_si512(m + i), flip);
    const __m512i v0 = _mm512_xor_si512(_mm512_loadu_si512(v + i), flip);
    const __m512i p1 = _mm512_xor_si512(_mm512_loadu_si512(p + i + 16), flip);
    const __m512i m1 = _mm512_xor_si512(_mm512_loadu_si512(m + i + 16), flip);
    const __m512i v1 = _mm512_xor_si512(_mm512_loadu_si512(v + i + 16), flip);
    _mm512_storeu_si512(p + i, p0);
    _mm512_storeu_si512(m + i, m0);
    _mm512_storeu_si512(v + i, v0);
    _mm512_storeu_si512(p + i + 16, p1);
    _mm512_storeu_si512(m + i + 16, m1);
    _mm512_storeu_si512(v + i + 16, v1);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(weight + i),
                        _mm512_permutex2var_epi16(p0, odd_halves, p1));
  }
  _mm_sfence();
}

void ScaleAvx512(float* x, float factor, size_t count) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (size_t i = 0; i < count; i += 16) {
    _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), factors));
  }
}

}  // namespace ballast::bench
