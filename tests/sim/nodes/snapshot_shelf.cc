#include "tests/sim/nodes/snapshot_shelf.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/arena.h"
#include "common/job/optimizer.h"

namespace ballast::sim {

using server::ImageFile;

void SnapshotShelf::LosePower() {
  world_->Met(Cover::kShelfPowerLost);
  const CrashMood mood = swarm_->faults.mood;
  disk_.Crash([this, mood]() -> uint64_t {
    if (mood == CrashMood::kMixed) return world_->random().Next();
    return mood == CrashMood::kKeepsAll ? 0 : 1;
  });
}

void SnapshotShelf::OnDoubtful(const std::string& name) {
  taken_.erase(name);
  doubtful_.insert(name);
}

void SnapshotShelf::OnTaken(const std::string& name) {
  doubtful_.erase(name);
  taken_.insert(name);
  world_->Met(Cover::kSnapshotTaken);
  const server::SnapshotStore store = Reader();
  const auto found = store.Find(plan_->spec.name, name);
  if (found.ok()) return (void)CheckOne(store, *found);
  world_->Red(absl::StrCat("snapshot ", name, " was taken: ", found.status().ToString()));
}

void SnapshotShelf::OnGone(const std::string& name) { doubtful_.erase(name); }

void SnapshotShelf::Check(bool cleared) {
  const server::SnapshotStore store = Reader();
  const auto all = store.List();
  if (!all.ok()) return world_->Red(absl::StrCat("snapshots: ", all.status().ToString()));
  std::set<std::string> listed;
  std::set<std::string> directories;
  for (const server::SnapshotManifest& manifest : *all) {
    listed.insert(manifest.name);
    directories.insert(store.Directory(manifest.id));
    if (taken_.count(manifest.name) == 0 && doubtful_.count(manifest.name) == 0) {
      return world_->Red(absl::StrCat("snapshot ", manifest.name, " is listed, and nobody took it ",
                                      "or it was removed"));
    }
    if (!CheckOne(store, manifest)) return;
  }
  for (const std::string& name : taken_) {
    if (listed.count(name) == 0) {
      return world_->Red(absl::StrCat("snapshot ", name, " was taken, and is not listed"));
    }
  }
  for (const std::string& path : disk_.Paths()) {
    if (!cleared || directories.count("/" + path.substr(0, path.rfind('/'))) != 0) continue;
    return world_->Red(absl::StrCat("/", path, " is left of a snapshot that there is not"));
  }
}

bool SnapshotShelf::CheckOne(const server::SnapshotStore& store,
                             const server::SnapshotManifest& manifest) {
  const std::string whose = absl::StrCat("snapshot ", manifest.name);
  oracle_->OnRoundBefore(whose, manifest.round, {manifest.prepared, manifest.decision});
  const uint64_t most =
      ImageFile::BufferBytes({0, layout_->extent_elements(), StateArrayCount(plan_->spec)});
  const absl::StatusOr<Arena> image = Arena::Create(most);
  if (!image.ok()) world_->Red(image.status().ToString());
  for (const uint32_t server : plan_->servers) {
    if (world_->stopped()) return false;
    const auto part = store.OpenPart(manifest.id, *plan_, *layout_, server);
    if (!part.ok()) world_->Red(absl::StrCat(whose, ": ", part.status().ToString()));
    for (uint32_t extent = 0; extent < plan_->owner.size(); ++extent) {
      if (world_->stopped()) return false;
      if (plan_->owner[extent] != server) continue;
      const absl::Status read = (*part)->Read(extent, manifest.round, image->data());
      if (!read.ok()) world_->Red(absl::StrCat(whose, ": ", read.ToString()));
      if (world_->stopped()) return false;
      oracle_->OnImage(whose, manifest.round, extent,
                       reinterpret_cast<const float*>(image->data()));
    }
  }
  return !world_->stopped();
}

}  // namespace ballast::sim
