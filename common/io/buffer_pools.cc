#include "common/io/buffer_pools.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/bytes/round_up.h"

namespace ballast {

size_t BufferPools::ClassOf(size_t bytes, size_t most, size_t unit) {
  const size_t step = std::max(unit, std::bit_floor(bytes) / 8);
  return std::min(RoundUp(bytes, step), RoundUp(most, unit));
}

absl::StatusOr<BufferPool*> BufferPools::Find(size_t bytes) {
  const auto found = pools_.find(bytes);
  if (found == pools_.end()) {
    return absl::InternalError(absl::StrCat("no buffers of ", bytes, " bytes were planned"));
  }
  Pool& pool = found->second;
  if (!pool.pool.has_value()) {
    BALLAST_ASSIGN_OR_RETURN(
        BufferPool made, BufferPool::Create({.buffer_bytes = bytes, .max_buffers = pool.allowed}));
    pool.pool.emplace(std::move(made));
  }
  return &*pool.pool;
}

absl::StatusOr<BufferRef> BufferPools::Acquire(size_t bytes) {
  BALLAST_ASSIGN_OR_RETURN(BufferPool* const pool, Find(bytes));
  return pool->Acquire();
}

void BufferPools::Prepare(size_t bytes, size_t buffers) {
  const absl::StatusOr<BufferPool*> pool = Find(bytes);
  if (pool.ok()) (*pool)->Prepare(buffers);
}

}  // namespace ballast
