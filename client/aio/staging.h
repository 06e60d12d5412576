// Staging: a few chunks of aligned memory for bytes without the alignment that direct I/O needs.
// Comes from: transfer.h. Goes to: common/io/arena.h. Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "common/io/arena.h"

namespace ballast {

class Staging {
 public:
  // `chunks` >= 1 of `chunk_bytes` each, a multiple of kPageBytes. They are mapped at first use.
  Staging(size_t chunk_bytes, size_t chunks) : chunk_bytes_(chunk_bytes), chunks_(chunks) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // A chunk for the caller alone until Give; waits until one is free. RESOURCE_EXHAUSTED when the
  // system refuses the memory.
  absl::StatusOr<char*> Take();
  void Give(char* chunk);

  size_t chunk_bytes() const { return chunk_bytes_; }

 private:
  const size_t chunk_bytes_;
  const size_t chunks_;
  Mutex mu_;
  CondVar given_;
  Arena memory_ ABSL_GUARDED_BY(mu_);
  std::vector<char*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast
