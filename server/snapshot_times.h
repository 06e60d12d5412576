// Restores the time of each job's newest snapshot in /metrics after a restart.
#pragma once

#include "common/metrics/metrics.h"
#include "server/operator/operator_calls.h"

namespace ballast::server {

// Asks for all snapshots and marks their times, asynchronously, on the directory's thread. A server
// other than the home refuses the question: the home answers it. `metrics` outlives the directory.
void MarkSnapshots(SnapshotApi* snapshots, ServerMetrics* metrics);

}  // namespace ballast::server
