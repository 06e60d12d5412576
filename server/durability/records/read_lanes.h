// ReadLanes: several reads under way at a time, each with memory of its own, so that opening files
// takes the disk's full speed instead of one request after the other.
// Comes from: opening of the gradient log and the images. Goes to: a WorkerPool for as long as it
// lives. Thread safety: thread-compatible; bodies run on several threads at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/arena.h"
#include "common/threads/worker_pool.h"

namespace ballast::server {

class ReadLanes {
 public:
  // `lanes` >= 1; one is the calling thread. Each gets `scratch_bytes` of memory, rounded up to
  // Arena::kAlignmentBytes.
  static absl::StatusOr<ReadLanes> Create(int lanes, size_t scratch_bytes);

  // Calls body(i, scratch) for each i in [0, count) and returns when all calls have returned: the
  // error of the lowest i, if any. Each i is begun after those below it; `scratch` is the body's
  // until it returns.
  absl::Status ForEach(size_t count,
                       absl::FunctionRef<absl::Status(size_t i, const Arena& scratch)> body);

 private:
  std::vector<Arena> scratch_;
  std::unique_ptr<WorkerPool> pool_;  // none for one lane
};

}  // namespace ballast::server
