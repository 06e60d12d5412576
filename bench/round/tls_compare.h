// The cost of TLS: two jobs of the same model at two servers, one in plaintext and one over TLS
// with certificates on both ends, that take turns.
// Comes from: round_bench --tls. Goes to: client/cpp, two ballastds. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/parts/harness.h"

namespace ballast::bench {

struct TlsOptions {
  std::string certificates;  // a directory of scripts/dev-ca.sh
  uint64_t parameters = 0;
  int warmups = 0;
  int repeats = 0;
  std::string server;  // path of ballastd
  std::vector<std::string> server_arguments;
};

// Runs the comparison. Keys of the result:
//   plaintext_vs_tls  plaintext's time of a round / that over TLS; median over the repetitions
//   plaintext_round_ms, tls_round_ms
// Weights are compared after every round, all state arrays at the end.
absl::StatusOr<Outcome> CompareTls(const TlsOptions& options);

}  // namespace ballast::bench
