// SnapshotFiles: the snapshots and exports that this server keeps or reads, as the desks see them.
// Comes from: Directory. Goes to: SnapshotStore, Exports.
// Thread safety: immutable, apart from what the stores do; every call but Check, CheckHome and
// InfoOf blocks on the disk.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cluster/job_directory.h"
#include "server/cluster/this_server.h"

namespace ballast::server {

class SnapshotFiles {
 public:
  // `self` outlives the object.
  SnapshotFiles(const ThisServer* self, DirectorySnapshots kept)
      : self_(self), kept_(std::move(kept)) {}

  // FAILED_PRECONDITION UNSUPPORTED where no snapshots are kept, and below that `store` is null.
  absl::Status Check() const;
  // As Check, at the home; see ThisServer::CheckHome. On the strand.
  absl::Status CheckHome() const;

  // The manifest of a snapshot that the home has found. UNSUPPORTED where it is not seen.
  absl::StatusOr<SnapshotManifest> Shared(uint64_t id) const;
  // A snapshot as an entry of a list. DATA_LOSS for a plan that cannot be read.
  absl::StatusOr<SnapshotInfo> InfoOf(const SnapshotManifest& manifest) const;
  absl::StatusOr<JobPlan> PlanOf(const SnapshotManifest& manifest) const {
    return kept_.codec.decode(manifest.plan);
  }

  SnapshotStore* store() const { return kept_.store.get(); }
  Exports* exports() const { return kept_.exports.get(); }
  const PlanCodec& codec() const { return kept_.codec; }

 private:
  const ThisServer* const self_;
  const DirectorySnapshots kept_;
};

// A number for a snapshot, or for a job or a seat that is made of one. Never 0.
uint64_t RandomId();

}  // namespace ballast::server
