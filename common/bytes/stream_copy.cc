// StreamCopy with SSE2's streaming stores, which every x86-64 has; memcpy elsewhere. See
// stream_copy.h. Thread safety: pure function.
#include "common/bytes/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ballast {

void StreamCopy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  // A cache line, which the processor writes as one; shorter copies are not worth the fence.
  constexpr size_t kLineBytes = 64;
  constexpr size_t kBytesMin = 4096;
  if (bytes >= kBytesMin) {
    auto* out = static_cast<char*>(to);
    const auto* in = static_cast<const char*>(from);
    const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(out) % kLineBytes) % kLineBytes;
    std::memcpy(out, in, head);
    out += head;
    in += head;
    bytes -= head;
    for (; bytes >= kLineBytes; bytes -= kLineBytes, out += kLineBytes, in += kLineBytes) {
      const auto* source = reinterpret_cast<const __m128i*>(in);
      auto* target = reinterpret_cast<__m128i*>(out);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();
    std::memcpy(out, in, bytes);
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace ballast
