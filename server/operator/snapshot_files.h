// SnapshotFiles: the snapshots and exports that this server keeps or reads.
// Comes from: Directory. Goes to: SnapshotStore, Exports.
// Thread safety: immutable, apart from the stores; every call but Check, CheckHome and InfoOf
// blocks on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/directory_config.h"
#include "server/jobs/this_server.h"
#include "server/operator/operator_calls.h"

namespace ballast::server {

class SnapshotFiles {
 public:
  // `self` outlives the object.
  SnapshotFiles(const ThisServer* self, DirectorySnapshots kept)
      : self_(self), kept_(std::move(kept)) {}

  // FAILED_PRECONDITION UNSUPPORTED where no snapshots are kept.
  absl::Status Check() const;
  // As Check, at the home; see ThisServer::CheckHome. On the strand.
  absl::Status CheckHome() const;

  // SnapshotStore's Begin, Commit and Remove, charged to the disk quota of the job's tenant; Begin
  // charges `bytes`, which need not cover the manifest. Begin and Commit: OVER_QUOTA, too, and a
  // Commit has written nothing then. Files left by a failed Remove still count.
  absl::Status Begin(uint64_t id, const JobPlan& plan, const std::string& name,
                     uint64_t bytes) const;
  absl::Status Commit(const SnapshotManifest& manifest) const;
  absl::Status Remove(const std::string& tenant, uint64_t id) const;
  // After a start, at the home: charges existing snapshots to the quotas. Errors as
  // SnapshotStore::List's.
  absl::Status Count() const;

  // The manifest of a snapshot that the home has found. UNSUPPORTED where it is not seen.
  absl::StatusOr<SnapshotManifest> Shared(const std::string& tenant, uint64_t id) const;
  // A snapshot as an entry of a list. DATA_LOSS for a plan that cannot be read.
  absl::StatusOr<SnapshotInfo> InfoOf(const SnapshotManifest& manifest) const;
  // Of the job that it was taken of, which belongs to the tenant of the manifest.
  absl::StatusOr<JobPlan> PlanOf(const SnapshotManifest& manifest) const;

  // Whether any are kept. All below needs that.
  bool keeps() const { return kept_.store != nullptr; }
  // Of one tenant.
  SnapshotStore store(const std::string& tenant) const { return kept_.store->Of(tenant); }
  Exports exports(const std::string& tenant) const { return kept_.exports->Of(tenant); }
  absl::StatusOr<std::vector<std::string>> Tenants() const { return kept_.store->Tenants(); }
  const PlanCodec& codec() const { return kept_.codec; }

 private:
  const ThisServer* const self_;
  const DirectorySnapshots kept_;
};

}  // namespace ballast::server
