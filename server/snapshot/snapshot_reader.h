// SnapshotReader: the states of a snapshot's extents, from whichever part they are in. All parts
// are opened at once, so that a snapshot deleted meanwhile is read to its end.
// Comes from: restore, export. Goes to: SnapshotStore, ImageFile.
// Thread safety: Read from any thread, one call for an extent at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/snapshot/store.h"

namespace ballast::server {

class SnapshotReader {
 public:
  // Opens the parts that hold extents of the plan, which is the manifest's. DATA_LOSS STATE_LOST.
  static absl::StatusOr<std::unique_ptr<SnapshotReader>> Open(const SnapshotStore& store,
                                                              const SnapshotManifest& manifest,
                                                              const JobPlan& plan,
                                                              const Layout& layout);

  // Reads the state of an extent as ImageFile::Read does. DATA_LOSS.
  absl::Status Read(uint32_t extent, void* to) const;

 private:
  SnapshotReader(uint64_t round, const std::vector<uint32_t>& owner)
      : round_(round), owner_(owner) {}

  const uint64_t round_;
  const std::vector<uint32_t> owner_;
  std::map<uint32_t, std::unique_ptr<ImageFile>> parts_;  // by server
};

}  // namespace ballast::server
