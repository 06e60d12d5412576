// The cost of a round with another optimizer than AdamW: two jobs of the same model at one
// ballastd, one of AdamW and one of the other kind, that take turns.
// Comes from: round_bench --optimizer. Goes to: client/cpp, a ballastd. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/parts/harness.h"

namespace ballast::bench {

struct OptimizerOptions {
  std::string kind;  // "lamb" and so on; case does not matter
  uint64_t parameters = 0;
  int warmups = 0;
  int repeats = 0;
  std::string server;  // path of ballastd
  std::vector<std::string> server_arguments;
};

// Runs the comparison; INVALID_ARGUMENT with the names for a kind not in the table. Keys of the
// result:
//   adamw_vs_kind  AdamW's time of a round / the kind's; median over the repetitions' ratios
//   adamw_round_ms, kind_round_ms, adamw_server_step_ms, kind_server_step_ms
// Weights are compared after every round, all state arrays at the end, with the scalar kernel on
// sampled tensors.
absl::StatusOr<Outcome> CompareOptimizer(const OptimizerOptions& options);

}  // namespace ballast::bench
