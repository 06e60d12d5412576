// The yardstick in the baseline instruction set, for the scalar kernels; see kernel_roofline.h.
// Thread safety: pure functions.
#include <emmintrin.h>

#include "bench/kernel/kernel_roofline_loop.h"

namespace ballast::bench {
namespace {

struct Sse2 {
  using I = __m128i;
  static constexpr size_t kLanes = 4;
  static I Set(int x) { return _mm_set1_epi32(x); }
  static I Load(const void* from) { return _mm_loadu_si128(static_cast<const I*>(from)); }
  static void Store(void* to, I x) { _mm_storeu_si128(static_cast<I*>(to), x); }
  static I And(I a, I b) { return _mm_and_si128(a, b); }
  static I Xor(I a, I b) { return _mm_xor_si128(a, b); }
  static void Keep(I* a, I* b) { asm volatile("" : "+x"(*a), "+x"(*b)); }
  // Signed values, which the signed pack keeps.
  static void StreamUpperHalves(uint16_t* to, I low, I high) {
    _mm_stream_si128(reinterpret_cast<I*>(to),
                     _mm_packs_epi32(_mm_srai_epi32(low, 16), _mm_srai_epi32(high, 16)));
  }
  static void Fence() { _mm_sfence(); }
};

void Scale(float* x, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace

const Yardsticks kSse2Yardsticks = MakeYardsticks<Sse2>(Scale);

}  // namespace ballast::bench
