// Copying into memory read much later: past the caches, so that they keep the bytes about to be
// used, and without first reading the old content.
// Comes from: Crc32cCopy. Goes to: nothing. Thread safety: pure function.
#pragma once

#include <cstddef>

namespace ballast {

// Copies `bytes` bytes from `from` to `to`, which must not overlap. Both may be unaligned, and null
// when `bytes` is 0. The bytes are visible to a thread that synchronises with this one afterwards.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace ballast
