// What durability costs a training run: three jobs of the same model at one ballastd, one per
// level, that take turns.
// Comes from: round_bench --durability. Goes to: client/cpp, a ballastd.
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ballast/client.h"
#include "bench/parts/harness.h"

namespace ballast::bench {

struct DurabilityOptions {
  uint64_t parameters = 0;
  int repeats = 0;
  // Between two rounds, where a trainer would compute gradients. Negative: as long as a round
  // takes, or longer when the disk needs that to write a round's bytes in half of the time.
  double think_ms = -1;
  std::string path;    // of the files, an existing directory
  std::string server;  // path of ballastd
  std::vector<std::string> server_arguments;
};

// The level called `name`: none, process or power; false for another name.
bool ParseDurability(const std::string& name, client::Durability* level);

// Runs the comparison. Keys of the result:
//   process_vs_none  rounds per second at level process / at level none, think time included;
//                    median over the repetitions' ratios
//   power_vs_none    the same of level power
//   process_step_vs_none, power_step_vs_none
//                    the same without the think time: a trainer's wait
// A repetition is one turn of some rounds per job, in an order that changes.
absl::StatusOr<Outcome> CompareDurability(const DurabilityOptions& options);

}  // namespace ballast::bench
