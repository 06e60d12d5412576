// BufferPools: pools of buffers of several sizes, so that a buffer takes the bytes of its content
// and not those of the largest. Sizes are rounded up to classes, at most an eighth above, so that
// many sizes share few pools.
// Comes from: server/extents (registers, sums, weights on their way out). Goes to: the same.
// Thread safety: Allow before anything else; Acquire and Prepare as thread-compatible; buffers as
// BufferRef says.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "absl/status/statusor.h"
#include "common/io/arena.h"

namespace ballast {

class BufferPools {
 public:
  // Bytes of a buffer for `bytes`, where none holds more than `most`: its class, a multiple of
  // `unit`, which is a power of two.
  static size_t ClassOf(size_t bytes, size_t most, size_t unit);

  // From now on `buffers` more of `bytes` may be in use at a time.
  void Allow(size_t bytes, size_t buffers) { pools_[bytes].allowed += buffers; }
  // A buffer of exactly `bytes`, which Allow has named. Errors: those of BufferPool::Acquire;
  // INTERNAL for other sizes.
  absl::StatusOr<BufferRef> Acquire(size_t bytes);
  // BufferPool::Prepare of the buffers of that size. Best effort.
  void Prepare(size_t bytes, size_t buffers);

 private:
  struct Pool {
    size_t allowed = 0;
    std::optional<BufferPool> pool;  // made at its first use
  };
  absl::StatusOr<BufferPool*> Find(size_t bytes);

  std::map<size_t, Pool> pools_;  // by the size of their buffers
};

}  // namespace ballast
