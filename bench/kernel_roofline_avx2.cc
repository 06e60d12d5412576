// The yardstick in AVX2; see kernel_roofline.h and, for the order of loads and stores,
// kernel_roofline_avx512.cc. Thread safety: pure functions.
#include "bench/kernel_roofline.h"

#include <immintrin.h>

namespace ballast::bench {
namespace {

__m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
void Store(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }

}  // namespace

void RooflineAvx2(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                  size_t count) {
  const __m256i low_bits = _mm256_set1_epi32(7);
  for (size_t i = 0; i < count; i += 16) {
    const __m256i flip = _mm256_and_si256(Load(grad + i), low_bits);
    const __m256i p0 = _mm256_xor_si256(Load(p + i), flip);
    const __m256i m0 = _mm256_xor_si256(Load(m + i), flip);
    const __m256i v0 = _mm256_xor_si256(Load(v + i), flip);
    const __m256i p1 = _mm256_xor_si256(Load(p + i + 8), flip);
    const __m256i m1 = _mm256_xor_si256(Load(m + i + 8), flip);
    const __m256i v1 = _mm256_xor_si256(Load(v + i + 8), flip);
    Store(p + i, p0);
    Store(m + i, m0);
    Store(v + i, v0);
    Store(p + i + 8, p1);
    Store(m + i + 8, m1);
    Store(v + i + 8, v1);
    const __m256i packed =
        _mm256_packus_epi32(_mm256_srli_epi32(p0, 16), _mm256_srli_epi32(p1, 16));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(weight + i),
                        _mm256_permute4x64_epi64(packed, 0xD8));
  }
  _mm_sfence();
}

void ScaleAvx2(float* x, float factor, size_t count) {
  const __m256 factors = _mm256_set1_ps(factor);
  for (size_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factors));
  }
}

}  // namespace ballast::bench
