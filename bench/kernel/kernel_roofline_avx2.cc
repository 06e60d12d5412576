// The yardstick in AVX2; see kernel_roofline.h. Thread safety: pure functions.
#include <immintrin.h>

#include "bench/kernel/kernel_roofline_loop.h"

namespace ballast::bench {
namespace {

struct Avx2 {
  using I = __m256i;
  static constexpr size_t kLanes = 8;
  static I Set(int x) { return _mm256_set1_epi32(x); }
  static I Load(const void* from) { return _mm256_loadu_si256(static_cast<const I*>(from)); }
  static void Store(void* to, I x) { _mm256_storeu_si256(static_cast<I*>(to), x); }
  static I And(I a, I b) { return _mm256_and_si256(a, b); }
  static I Xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static void Keep(I* a, I* b) { asm volatile("" : "+x"(*a), "+x"(*b)); }
  static void StreamUpperHalves(uint16_t* to, I low, I high) {
    const I packed = _mm256_packus_epi32(_mm256_srli_epi32(low, 16), _mm256_srli_epi32(high, 16));
    _mm256_stream_si256(reinterpret_cast<I*>(to), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  static void Fence() { _mm_sfence(); }
};

void Scale(float* x, float factor, size_t count) {
  const __m256 factors = _mm256_set1_ps(factor);
  for (size_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factors));
  }
}

}  // namespace

const Yardsticks kAvx2Yardsticks = MakeYardsticks<Avx2>(Scale);

}  // namespace ballast::bench
