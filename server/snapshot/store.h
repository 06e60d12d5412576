// SnapshotStore: the snapshots of one tenant, in a directory that all servers of a cluster share.
//
//   <root>/<snapshot id, 16 hex digits>/part-<server>   states of the extents of one server, a file
//                                                       of images with one place for each
//   <root>/<snapshot id, 16 hex digits>/TAKING          while it is taken: by whom
//   <root>/<snapshot id>/MANIFEST                       written last; without it there is none
//   <root>/@<tenant>/...                                likewise, of any tenant but "default"
//
// Comes from: Snapshotter, Restorer, Exporter. Goes to: common/io files, ImageFile.
// Thread safety: any thread, but one call at a time for a snapshot; every call but Of blocks on the
// disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "common/tensor/layout.h"
#include "server/durability/images/image_base.h"
#include "server/durability/images/image_file.h"
#include "server/round/round_types.h"
#include "server/snapshot/manifest.h"

namespace ballast::server {

class SnapshotStore {
 public:
  // `fs` outlives the store. `owner` tells this server from all others that may share the
  // directory, also after a restart; not empty.
  SnapshotStore(FileSystem* fs, std::string root, uint32_t self, std::string owner)
      : fs_(fs), root_(std::move(root)), self_(self), owner_(std::move(owner)) {}

  // The store of a tenant, below the root of this one, which is that of the tenant "default".
  SnapshotStore Of(const std::string& tenant) const;
  // The tenants with snapshots, now or earlier. Errors as FileSystem's.
  absl::StatusOr<std::vector<std::string>> Tenants() const;

  const std::string& root() const { return root_; }
  std::string Directory(uint64_t id) const;

  // After a start, for all tenants: makes the root, and removes the snapshots that this server was
  // taking when it ended, and the passing snapshots (kPassingSnapshotName) that it took. Errors as
  // FileSystem's.
  absl::Status Clear();

  // Bytes of the part of `server`.
  static uint64_t PartBytes(const JobPlan& plan, const Layout& layout, uint32_t server);

  // Begins a snapshot at the home: makes its directory. Errors: ALREADY_EXISTS NAME_IN_USE: `job`
  // has one of this name, unless it is kPassingSnapshotName; RESOURCE_EXHAUSTED OVER_BUDGET with
  // `bytes`, which it will take, and the free ones.
  absl::Status Begin(uint64_t id, const std::string& job, const std::string& name, uint64_t bytes);
  // Makes the part of this server in an existing directory. FAILED_PRECONDITION without it: the
  // servers do not share one.
  absl::StatusOr<std::unique_ptr<ImageFile>> CreatePart(uint64_t id, const JobPlan& plan,
                                                        const Layout& layout);
  // All parts are durable: the snapshot exists from now on.
  absl::Status Commit(const SnapshotManifest& manifest);
  // Removes the part of this server, for an abandoned snapshot.
  absl::Status DropPart(uint64_t id);
  // Removes the whole snapshot; the manifest goes first. It may be missing. Call again after an
  // error, which is FileSystem's.
  absl::Status Remove(uint64_t id);
  // Bytes of its parts and its manifest, as far as they exist. Errors as FileSystem's.
  absl::StatusOr<uint64_t> BytesOnDisk(uint64_t id) const;

  // The existing ones, oldest first, without passing ones. One whose manifest is damaged is logged
  // and left out.
  absl::StatusOr<std::vector<SnapshotManifest>> List() const;
  // NOT_FOUND UNKNOWN_JOB when `job` has none of this name.
  absl::StatusOr<SnapshotManifest> Find(const std::string& job, const std::string& name) const;
  // Also a passing one. NOT_FOUND when it does not exist; DATA_LOSS STATE_LOST.
  absl::StatusOr<SnapshotManifest> Find(uint64_t id) const;
  // Opens a part of a snapshot to be read. DATA_LOSS STATE_LOST when it is missing or not its own.
  absl::StatusOr<std::unique_ptr<ImageFile>> OpenPart(uint64_t id, const JobPlan& plan,
                                                      const Layout& layout, uint32_t server) const;
  // Gives the images of job `to` at this server, which are empty and in `directory`, the parts that
  // hold its extents as their first images (image_base.h); `from` is the manifest's plan, `layout`
  // that of both. Nothing is copied, and the snapshot may be removed. Errors: UNIMPLEMENTED where
  // files of the snapshot cannot be linked to `directory`, and then nothing is left there; as
  // OpenPart.
  absl::Status Lend(const SnapshotManifest& manifest, const JobPlan& from, const Layout& layout,
                    const JobPlan& to, const std::string& directory) const;
  // Reads every byte of the parts and compares the checksums; `plan` is the manifest's. `go_on` is
  // called before each extent, and its error is returned. DATA_LOSS STATE_LOST naming file, extent
  // and offset.
  absl::Status Verify(const SnapshotManifest& manifest, const JobPlan& plan,
                      const std::function<absl::Status()>& go_on = absl::OkStatus) const;

 private:
  absl::Status ClearOwn();
  // Links the parts to `directory`.
  absl::Status LinkParts(uint64_t id, const ImageBase& base, const std::string& directory) const;
  std::string PartPath(uint64_t id, uint32_t server) const;
  // Paths of the existing parts.
  absl::StatusOr<std::vector<std::string>> PartsOf(uint64_t id) const;
  std::string TakingPath(uint64_t id) const;
  std::string ManifestPath(uint64_t id) const;
  absl::StatusOr<std::vector<uint64_t>> Ids() const;
  // Whether a start may remove it: it has no manifest, or is a passing one.
  bool IsLeftOver(uint64_t id, const std::vector<std::string>& files) const;

  FileSystem* fs_;
  std::string root_;
  uint32_t self_;
  std::string owner_;
  std::string tenant_ = kDefaultTenant;
};

}  // namespace ballast::server
