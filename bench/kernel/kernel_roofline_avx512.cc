// The yardstick in AVX-512; see kernel_roofline.h. Thread safety: pure functions.
#include <immintrin.h>

#include "bench/kernel/kernel_roofline_loop.h"

namespace ballast::bench {
namespace {

struct Avx512 {
  using I = __m512i;
  static constexpr size_t kLanes = 16;
  static I Set(int x) { return _mm512_set1_epi32(x); }
  static I Load(const void* from) { return _mm512_loadu_si512(from); }
  static void Store(void* to, I x) { _mm512_storeu_si512(to, x); }
  static I And(I a, I b) { return _mm512_and_si512(a, b); }
  static I Xor(I a, I b) { return _mm512_xor_si512(a, b); }
  static void Keep(I* a, I* b) { asm volatile("" : "+v"(*a), "+v"(*b)); }
  static void StreamUpperHalves(uint16_t* to, I low, I high) {
    alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    _mm512_stream_si512(reinterpret_cast<I*>(to),
                        _mm512_permutex2var_epi16(low, _mm512_load_si512(kOdd), high));
  }
  static void Fence() { _mm_sfence(); }
};

void Scale(float* x, float factor, size_t count) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (size_t i = 0; i < count; i += 16) {
    _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), factors));
  }
}

}  // namespace

const Yardsticks kAvx512Yardsticks = MakeYardsticks<Avx512>(Scale);

}  // namespace ballast::bench
