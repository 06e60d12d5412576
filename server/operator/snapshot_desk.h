// SnapshotDesk: operators' requests about snapshots, at the home: to take one, to list them, to
// verify one, to remove one.
// Comes from: OperatorDoor, ExportDesk. Goes to: SnapshotTaking, SnapshotStore.
// Thread safety: owned by the directory's strand.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operator/desk_parts.h"
#include "server/operator/snapshot_share.h"
#include "server/operator/snapshot_taking.h"

namespace ballast::server {

class SnapshotDesk {
 public:
  using Done = SnapshotTaking::Done;
  using ListDone = std::function<void(absl::StatusOr<std::vector<SnapshotInfo>>)>;

  // `share` outlives the object.
  SnapshotDesk(const DeskParts& parts, SnapshotShare* share) : parts_(parts), share_(share) {}

  // As OperatorDoor's of the same names, with their errors.
  void Create(const QualifiedName& job, const std::string& name, uint32_t keep, const Done& done);
  void List(const SnapshotFilter& filter, const ListDone& done);
  void Verify(const QualifiedName& job, const std::string& name, const Done& done);
  void Delete(const QualifiedName& job, const std::string& name, const Done& done);
  // An unlisted snapshot for the duration of an export; the caller removes it.
  void TakePassing(const QualifiedName& job, const Done& done);

  // UNAVAILABLE RECOVERING for a job to be woken or deleted while a snapshot of it is taken at
  // rest.
  absl::Status HeldAtRest(const JobPlan& plan) const;

 private:
  using Use = std::function<absl::Status(const SnapshotManifest&, const Halt&)>;

  // `tries` are left, this one included.
  void Take(const QualifiedName& job, const std::string& name, uint32_t keep, int tries,
            const Done& done);
  absl::StatusOr<std::vector<SnapshotInfo>> ListFiles(const SnapshotFilter& filter) const;
  // Does `use` to the snapshot on a thread for the disk.
  void Apply(const QualifiedName& job, const std::string& name, const Use& use, const Done& done);

  const DeskParts parts_;
  SnapshotShare* const share_;
  std::set<uint64_t> taking_;  // jobs of which a snapshot is being taken
};

}  // namespace ballast::server
