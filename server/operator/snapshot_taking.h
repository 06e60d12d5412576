// SnapshotTaking: one snapshot in the making, at the home. Every server of the job holds its state
// on disk and names its round. The latest of these rounds is the snapshot's. Then each server
// writes its part, and when all parts are durable the home writes the manifest. Before that there
// is no snapshot, so a crash leaves only parts without a manifest, never an incomplete snapshot.
// After an error every server lets go, and nothing is left on disk.
// Comes from: Snapshotter. Goes to: SnapshotShare here, and the peers'.
// Thread safety: owned by the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"
#include "server/operator/snapshot_share.h"

namespace ballast::server {

class SnapshotTaking : public std::enable_shared_from_this<SnapshotTaking> {
 public:
  using Done = std::function<void(absl::StatusOr<SnapshotInfo>)>;
  struct Task {
    SnapshotRequest request;
    JobPlan plan;
  };

  // `parts` and `share` outlive the object. `done` runs once, on the strand.
  SnapshotTaking(const DirectoryParts& parts, SnapshotShare* share, Task task, Done done)
      : parts_(parts),
        share_(share),
        task_(std::move(task)),
        done_(std::move(done)),
        id_(parts_.self->config().new_id()) {}

  void Start();

 private:
  // Of the job's tenant.
  SnapshotStore store() const { return parts_.files->store(task_.plan.tenant); }
  absl::Status Begin();
  void Hold();
  void Capture();
  void Commit();
  // As far as it is known by now.
  SnapshotManifest Manifest() const;
  absl::StatusOr<SnapshotInfo> CommitFiles();
  void Mark(const SnapshotInfo& info) const;
  // Removes snapshots older than the newest `keep`, but never the one just taken.
  void DropOldest() const;
  void GiveUp(const absl::Status& why);
  // Does a step at every server. `then` runs on the strand with the first error, when all servers
  // have answered.
  void AtAll(SnapshotCall::Step step, std::function<void(absl::Status)> then);

  const DirectoryParts parts_;
  SnapshotShare* const share_;
  const Task task_;
  const Done done_;
  const uint64_t id_;
  uint64_t bytes_ = 0;
  uint64_t round_ = 0;    // the latest named by a server
  CapturedRound before_;  // at this server, the home
};

}  // namespace ballast::server
