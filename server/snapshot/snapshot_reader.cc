#include "server/snapshot/snapshot_reader.h"

#include "common/base/status_macros.h"

namespace ballast::server {

absl::StatusOr<std::unique_ptr<SnapshotReader>> SnapshotReader::Open(
    const SnapshotStore& store, const SnapshotManifest& manifest, const JobPlan& plan,
    const Layout& layout) {
  std::unique_ptr<SnapshotReader> reader(new SnapshotReader(manifest.round, plan.owner));
  for (const uint32_t server : plan.owner) {
    std::unique_ptr<ImageFile>& part = reader->parts_[server];
    if (part != nullptr) continue;
    BALLAST_ASSIGN_OR_RETURN(part, store.OpenPart(manifest.id, plan, layout, server));
  }
  return reader;
}

absl::Status SnapshotReader::Read(uint32_t extent, void* to) const {
  const absl::Status read = parts_.at(owner_[extent])->Read(extent, round_, to);
  if (!absl::IsNotFound(read)) return read;
  return absl::DataLossError(read.message());
}

}  // namespace ballast::server
