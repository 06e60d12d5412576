// The time of each job's newest snapshot, as /metrics has it after a restart.
// Comes from: server.cc. Goes to: common/metrics. Thread safety: any thread.
#pragma once

#include "common/metrics/metrics.h"
#include "server/directory/doors.h"

namespace ballast::server {

// Asks for all snapshots and marks their times, later, on the directory's thread. A server that is
// not the home refuses the question, and leaves it to the home. `metrics` outlives the directory.
void MarkSnapshots(OperatorDoor* operators, ServerMetrics* metrics);

}  // namespace ballast::server
