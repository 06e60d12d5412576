// The "aio" section of a ds_config.json, as people have it: DeepSpeed's own tuner prints keys and
// types that DeepSpeed itself does not read.
// Comes from: ballastctl tune nvme --aio. Goes to: its measurements. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast::tools {

struct AioSettings {
  uint64_t block_bytes = uint64_t{1} << 20;  // DeepSpeed's defaults
  int queue_depth = 8;
  std::vector<std::string> warnings;  // values read differently from DeepSpeed
};

// Reads a whole ds_config.json, its "aio" section, or one between its braces. `thread_count` and
// `num_threads` count as intra_op_parallelism, and "true" and "false" as booleans, each with a
// warning; of these keys only block_size and queue_depth mean anything to Ballast. Errors:
// INVALID_ARGUMENT for text other than JSON, an unknown or repeated key, a value out of bounds;
// NOT_FOUND for a ds_config.json without the section.
absl::StatusOr<AioSettings> ParseAioSettings(const std::string& text);

}  // namespace ballast::tools
