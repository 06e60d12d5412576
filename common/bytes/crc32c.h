// CRC32C (Castagnoli, RFC 3720 appendix B.4), the checksum of data frames and stored records.
// Comes from: the frame codec, the durability formats. Goes to: nothing.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ballast {

// Returns the CRC32C of `bytes` bytes at `data`. `seed` is the CRC of the bytes that came before,
// so Crc32c(b, Crc32c(a)) equals Crc32c(a then b); 0 to begin. `data` may be unaligned, and may be
// null when `bytes` is 0. Uses AVX-512 or SSE4.2 when the CPU has them, else tables; all give equal
// values.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t seed = 0);

// Returns the checksum of bytes from those of their two parts, without the bytes:
// Crc32cJoin(Crc32c(a), Crc32c(b), bytes of b) is Crc32c(a then b). Costs some 0.1 us where
// `back_bytes` is a power of two, and up to 64 times that otherwise.
uint32_t Crc32cJoin(uint32_t front, uint32_t back, size_t back_bytes);

// Copies `bytes` bytes from `from` to `to`, which must not overlap, and returns
// Crc32c(from, bytes, seed): one pass over bytes in a cache, into memory that will be read later.
// Long inputs are written past the caches where the CPU can.
uint32_t Crc32cCopy(void* to, const void* from, size_t bytes, uint32_t seed = 0);

namespace internal {

// The implementations of Crc32c, visible so that the tests can compare them.
uint32_t Crc32cTable(const void* data, size_t bytes, uint32_t seed);
// Only when Crc32cHardwareAvailable().
uint32_t Crc32cHardware(const void* data, size_t bytes, uint32_t seed);
bool Crc32cHardwareAvailable();
// Only when Crc32cFoldingAvailable().
uint32_t Crc32cFolding(const void* data, size_t bytes, uint32_t seed);
bool Crc32cFoldingAvailable();

}  // namespace internal
}  // namespace ballast
