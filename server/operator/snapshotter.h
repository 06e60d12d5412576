// Snapshotter: operators' requests about snapshots, at the home: to take one, to list them, to
// verify one, to remove one.
// Comes from: the Admin service, Exporter. Goes to: SnapshotTaking, SnapshotStore.
// Thread safety: SnapshotApi from any thread; all else on the directory's strand.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/directory_parts.h"
#include "server/operator/snapshot_share.h"
#include "server/operator/snapshot_taking.h"

namespace ballast::server {

class Snapshotter final : public SnapshotApi {
 public:
  using ListDone = std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)>;

  // `share` outlives the object.
  Snapshotter(const DirectoryParts& parts, SnapshotShare* share) : parts_(parts), share_(share) {}

  void CreateSnapshot(SnapshotRequest request, Done done) override;
  void ListSnapshots(SnapshotFilter filter, ListDone done) override;
  void VerifySnapshot(SnapshotRequest request, Done done) override;
  void DeleteSnapshot(SnapshotRequest request, Done done) override;

  // An unlisted snapshot for the duration of an export; the caller removes it. On the strand.
  void TakePassing(const QualifiedName& job, const Done& done);

 private:
  using Use = std::function<absl::Status(const SnapshotManifest&, const CancelToken&)>;

  // `tries` are left, this one included.
  void Take(const SnapshotRequest& request, int tries, const Done& done);
  absl::StatusOr<std::vector<SnapshotInfo>> ListFiles(const SnapshotFilter& filter) const;
  // Does `use` to the snapshot on a thread for the disk.
  void Apply(const SnapshotRequest& request, const Use& use, const Done& done);

  const DirectoryParts parts_;
  SnapshotShare* const share_;
};

}  // namespace ballast::server
