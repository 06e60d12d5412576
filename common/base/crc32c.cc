// CRC32C by tables (eight bytes per step) and by SSE4.2 (three streams at once, because the
// instruction has a latency of three cycles and a throughput of one). See crc32c.h.
// Thread safety: pure functions over constant tables.
#include "common/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace ballast {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the table steps read little-endian words");

// The polynomial 0x1EDC6F41 with its bits reversed: bit 31 is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0x82F63B78u;

using Table = std::array<std::array<uint32_t, 256>, 8>;

// kTables[k][b] is the CRC state after byte b followed by k zero bytes.
constexpr Table MakeTables() {
  Table tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFFu];
    }
  }
  return tables;
}

constexpr Table kTables = MakeTables();

uint64_t LoadWord(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// Works on the raw state, without the inversions before and after.
uint32_t ExtendByTables(uint32_t crc, const unsigned char* p, size_t bytes) {
  for (; bytes >= 8; p += 8, bytes -= 8) {
    const uint64_t word = LoadWord(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFFu];
  }
  for (; bytes > 0; ++p, --bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFFu];
  return crc;
}

#if defined(__x86_64__)

// a * b modulo the polynomial, in the reversed representation.
constexpr uint32_t MultiplyModulo(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1u) != 0 ? kPolynomial : 0u);
  }
  return product;
}

// x^(8 * bytes) modulo the polynomial: what appending `bytes` zero bytes multiplies a state by.
constexpr uint32_t ZeroBytesFactor(size_t bytes) {
  uint32_t factor = 0x80000000u;  // x^0
  uint32_t square = 0x00800000u;  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1u) != 0) factor = MultiplyModulo(factor, square);
    square = MultiplyModulo(square, square);
  }
  return factor;
}

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

// A multiplication by a constant is linear, so four lookups by the bytes of the state do it.
constexpr ShiftTable MakeShiftTable(size_t bytes) {
  const uint32_t factor = ZeroBytesFactor(bytes);
  ShiftTable table{};
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      table[k][byte] = MultiplyModulo(factor, byte << (8 * k));
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xFFu] ^ table[1][(crc >> 8) & 0xFFu] ^ table[2][(crc >> 16) & 0xFFu] ^
         table[3][crc >> 24];
}

// Bytes per stream: long blocks make the two merges negligible, short ones serve small inputs.
constexpr size_t kLongBytes = 8192;
constexpr size_t kShortBytes = 256;
constexpr ShiftTable kLongShift = MakeShiftTable(kLongBytes);
constexpr ShiftTable kShortShift = MakeShiftTable(kShortBytes);

// Consumes whole blocks of three neighbouring streams; advances `p` and `bytes`.
template <size_t kStreamBytes>
__attribute__((target("sse4.2"))) uint64_t ExtendThreeStreams(uint64_t crc, const ShiftTable& shift,
                                                              const unsigned char** p,
                                                              size_t* bytes) {
  const unsigned char* q = *p;
  size_t left = *bytes;
  for (; left >= 3 * kStreamBytes; q += 3 * kStreamBytes, left -= 3 * kStreamBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      crc = _mm_crc32_u64(crc, LoadWord(q + i));
      second = _mm_crc32_u64(second, LoadWord(q + kStreamBytes + i));
      third = _mm_crc32_u64(third, LoadWord(q + 2 * kStreamBytes + i));
    }
    crc = Shift(shift, static_cast<uint32_t>(crc)) ^ second;
    crc = Shift(shift, static_cast<uint32_t>(crc)) ^ third;
  }
  *p = q;
  *bytes = left;
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t ExtendByHardware(uint32_t start, const unsigned char* p,
                                                            size_t bytes) {
  uint64_t crc = start;
  crc = ExtendThreeStreams<kLongBytes>(crc, kLongShift, &p, &bytes);
  crc = ExtendThreeStreams<kShortBytes>(crc, kShortShift, &p, &bytes);
  for (; bytes >= 8; p += 8, bytes -= 8) crc = _mm_crc32_u64(crc, LoadWord(p));
  uint32_t tail = static_cast<uint32_t>(crc);
  for (; bytes > 0; ++p, --bytes) tail = _mm_crc32_u8(tail, *p);
  return tail;
}

#endif  // defined(__x86_64__)

}  // namespace

namespace internal {

uint32_t Crc32cTable(const void* data, size_t bytes, uint32_t seed) {
  return ~ExtendByTables(~seed, static_cast<const unsigned char*>(data), bytes);
}

uint32_t Crc32cHardware(const void* data, size_t bytes, uint32_t seed) {
#if defined(__x86_64__)
  return ~ExtendByHardware(~seed, static_cast<const unsigned char*>(data), bytes);
#else
  return Crc32cTable(data, bytes, seed);
#endif
}

bool Crc32cHardwareAvailable() {
#if defined(__x86_64__)
  static const bool available = __builtin_cpu_supports("sse4.2") != 0;
  return available;
#else
  return false;
#endif
}

}  // namespace internal

uint32_t Crc32c(const void* data, size_t bytes, uint32_t seed) {
  return internal::Crc32cHardwareAvailable() ? internal::Crc32cHardware(data, bytes, seed)
                                             : internal::Crc32cTable(data, bytes, seed);
}

}  // namespace ballast
