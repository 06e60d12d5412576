// WalkRuns: reads the state of the extents that a shard's tensors touch, several at a time, and
// hands over each piece of a tensor that lies there.
// Comes from: the writers of exports. Goes to: ExportSource::read.
// Thread safety: blocks on the disk; `visit` runs on several threads at a time.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/tensor/layout.h"
#include "server/exchange/export_plan.h"
#include "server/exchange/export_writer.h"

namespace ballast::server {

// A piece of a tensor, and the state of its extent.
struct RunState {
  uint32_t extent = 0;
  const Run& run;
  const float* image = nullptr;  // as an image holds the extent's state
  // Two pieces of memory, each for an array of an extent and two pages more; the visitor's own.
  char* first = nullptr;
  char* second = nullptr;
};

// Calls `visit` for each run of the shard's tensors. Returns when all calls have returned: an error
// of one, of the source's `read`, or of its `go_on`.
absl::Status WalkRuns(const ExportShard& shard, const ExportSource& source,
                      absl::FunctionRef<absl::Status(const RunState&)> visit);

}  // namespace ballast::server
