#include "server/snapshot_times.h"

#include <vector>

#include "absl/status/statusor.h"

namespace ballast::server {

void MarkSnapshots(SnapshotApi* snapshots, ServerMetrics* metrics) {
  snapshots->ListSnapshots({}, [metrics](const absl::StatusOr<std::vector<SnapshotInfo>>& all) {
    if (!all.ok()) return;
    for (const SnapshotInfo& one : *all) {
      metrics->MarkSnapshot({one.tenant, one.job}, static_cast<double>(one.created_s));
    }
  });
}

}  // namespace ballast::server
