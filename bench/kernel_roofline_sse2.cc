// The yardstick in the baseline instruction set, for the scalar kernels; see kernel_roofline.h.
// Thread safety: pure functions.
#include "bench/kernel_roofline.h"

#include <emmintrin.h>

namespace ballast::bench {
namespace {

__m128i Load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void Store(void* to, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(to), x); }
// The upper halves of four lanes as signed values, which the signed pack below keeps.
__m128i UpperHalves(__m128i x) { return _mm_srai_epi32(x, 16); }

}  // namespace

void RooflineSse2(float* p, float* m, float* v, const uint16_t* grad, uint16_t* weight,
                  size_t count) {
  const __m128i low_bits = _mm_set1_epi32(7);
  for (size_t i = 0; i < count; i += 8) {
    const __m128i flip = _mm_and_si128(Load(grad + i), low_bits);
    const __m128i p0 = _mm_xor_si128(Load(p + i), flip);
    const __m128i m0 = _mm_xor_si128(Load(m + i), flip);
    const __m128i v0 = _mm_xor_si128(Load(v + i), flip);
    const __m128i p1 = _mm_xor_si128(Load(p + i + 4), flip);
    const __m128i m1 = _mm_xor_si128(Load(m + i + 4), flip);
    const __m128i v1 = _mm_xor_si128(Load(v + i + 4), flip);
    Store(p + i, p0);
    Store(m + i, m0);
    Store(v + i, v0);
    Store(p + i + 4, p1);
    Store(m + i + 4, m1);
    Store(v + i + 4, v1);
    _mm_stream_si128(reinterpret_cast<__m128i*>(weight + i),
                     _mm_packs_epi32(UpperHalves(p0), UpperHalves(p1)));
  }
  _mm_sfence();
}

void ScaleSse2(float* x, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace ballast::bench
