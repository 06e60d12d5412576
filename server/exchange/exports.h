// Exports: the exports of one tenant, in a directory that all servers of a cluster share.
//
//   <root>/<name>/model*.safetensors, model.safetensors.index.json    weights
//   <root>/<name>/optimizer/state*.safetensors, ...index.json         optimizer state
//   <root>/<name>/job.ballast                                         the job's description, last
//   <root>/<name>/TAG/..., latest_universal                           or all of it as universal.h
//   <root>/<name>/EXPORTING                                           while it is written: its
//   owner <root>/.<name>.<owner>                                            until that mark is in
//   it, and
//                                                                     while it is removed
//
//   <root>/@<tenant>/...                                              likewise, of any tenant but
//                                                                     "default"
//
// A name is one that CheckSnapshotName takes, so it is a single harmless component of a path.
// Comes from: Exporter and Importer. Goes to: common/io files. Layout: docs/formats/export.md.
// Thread safety: any thread, but one call at a time for an export; every call blocks on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/file.h"
#include "server/exchange/export_plan.h"
#include "server/exchange/universal.h"
#include "server/snapshot/manifest.h"

namespace ballast::server {

// Written last, in the form of a snapshot's MANIFEST.
inline constexpr absl::string_view kJobFile = "job.ballast";

class Exports {
 public:
  // `fs` outlives this. `owner`: as SnapshotStore's; part of a file's name.
  Exports(FileSystem* fs, std::string root, std::string owner)
      : fs_(fs), root_(std::move(root)), owner_(std::move(owner)) {}

  // The exports of a tenant, below the root of this, which is that of the tenant "default".
  Exports Of(const std::string& tenant) const;

  FileSystem* fs() const { return fs_; }
  const std::string& root() const { return root_; }
  const std::string& owner() const { return owner_; }
  // Of an export; the name was checked.
  std::string Directory(const std::string& name) const { return root_ + "/" + name; }

  // After a start, for all tenants: removes the unfinished files that this server was writing when
  // it ended. Errors as FileSystem's.
  absl::Status Clear();
  // Whether an export could have the name. INVALID_ARGUMENT BAD_ARGUMENT for an invalid one;
  // ALREADY_EXISTS NAME_IN_USE.
  absl::Status CheckNew(const std::string& name) const;
  // Whether `bytes` of an export fit in addition to the `snapshot_bytes` written first, below
  // `snapshot_root`. Makes both directories. RESOURCE_EXHAUSTED OVER_BUDGET with all numbers.
  absl::Status CheckRoom(uint64_t bytes, uint64_t snapshot_bytes,
                         const std::string& snapshot_root) const;
  // Makes an export's directory, for `bytes` bytes. Errors: CheckNew's; RESOURCE_EXHAUSTED
  // OVER_BUDGET with both numbers.
  absl::Status Begin(const std::string& name, uint64_t bytes, bool state);
  // What Commit and CommitUniversal write, in bytes. Errors as Commit's.
  static absl::StatusOr<uint64_t> LastBytes(const std::vector<ExportShard>& shards,
                                            const SnapshotManifest& manifest);
  static uint64_t LastBytes(const UniversalMoment& moment);
  // Once all files exist: writes the indexes, then the job's description.
  absl::Status Commit(const std::string& name, const std::vector<ExportShard>& shards,
                      const SnapshotManifest& manifest);
  // Once the folders of all parameters exist: writes the rest of a universal checkpoint.
  absl::Status CommitUniversal(const std::string& name, const UniversalMoment& moment);
  // Removes an abandoned export.
  absl::Status Remove(const std::string& name);
  // Whether anything of the export exists, also after an interrupted removal or where it cannot be
  // read; and its bytes. Errors as FileSystem's.
  bool Exists(const std::string& name) const;
  absl::StatusOr<uint64_t> BytesOnDisk(const std::string& name) const;

 private:
  absl::Status ClearOwn();
  absl::Status MakeMarked(const std::string& directory, bool state);
  absl::Status SyncNew();
  absl::Status RemoveMark(const std::string& directory);

  FileSystem* fs_;
  std::string root_;
  std::string owner_;
};

}  // namespace ballast::server
