#include "server/snapshot/store.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/io/arena.h"
#include "common/io/sync_path.h"
#include "common/job/optimizer.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/recovery/recovery.h"
#include "server/round/job_plan.h"
#include "server/snapshot/marked_directory.h"
#include "server/snapshot/tenant_directory.h"

namespace ballast::server {
namespace {

constexpr char kManifest[] = "MANIFEST";
constexpr char kTaking[] = "TAKING";
constexpr char kPart[] = "part-";
constexpr size_t kOwnerBytesMax = 256;
constexpr size_t kIdDigits = 16;

// As a job's storage on `server`, but written once. `flush` as the job's own.
StorageOptions PartOptions(const JobPlan& plan, const Layout& layout, uint32_t server) {
  StorageOptions options = StorageOptionsOf(plan, layout, server, /*checkpoint_rounds=*/1);
  options.images.places = 1;
  options.images.flush = true;
  return options;
}

absl::Status Lost(const std::string& directory, absl::string_view what) {
  return ReasonedError(absl::StatusCode::kDataLoss, Reason::kStateLost,
                       absl::StrCat("snapshot in ", directory, ": ", what,
                                    ". Put the right files back, or take another snapshot"));
}

}  // namespace

std::string SnapshotStore::Directory(uint64_t id) const {
  return absl::StrCat(root_, "/", JobIdText(id));
}

std::string SnapshotStore::PartPath(uint64_t id, uint32_t server) const {
  return absl::StrCat(Directory(id), "/", kPart, server);
}

std::string SnapshotStore::TakingPath(uint64_t id) const {
  return absl::StrCat(Directory(id), "/", kTaking);
}

std::string SnapshotStore::ManifestPath(uint64_t id) const {
  return absl::StrCat(Directory(id), "/", kManifest);
}

uint64_t SnapshotStore::PartBytes(const JobPlan& plan, const Layout& layout, uint32_t server) {
  return ImageFile::DiskBytes(PartOptions(plan, layout, server).shapes, /*places=*/1);
}

absl::StatusOr<std::vector<uint64_t>> SnapshotStore::Ids() const {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->List(root_));
  std::vector<uint64_t> ids;
  for (const std::string& name : names) {
    uint64_t id = 0;
    if (name.size() == kIdDigits && absl::SimpleHexAtoi(name, &id) && id != 0) ids.push_back(id);
  }
  return ids;
}

SnapshotStore SnapshotStore::Of(const std::string& tenant) const {
  SnapshotStore store = *this;
  store.root_ = TenantDirectory(root_, tenant);
  store.tenant_ = tenant;
  return store;
}

absl::StatusOr<std::vector<std::string>> SnapshotStore::Tenants() const {
  return TenantsBelow(fs_, root_);
}

absl::Status SnapshotStore::Clear() {
  BALLAST_RETURN_IF_ERROR(MakeLastingDirectory(fs_, root_));
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> tenants, Tenants());
  for (const std::string& tenant : tenants) BALLAST_RETURN_IF_ERROR(Of(tenant).ClearOwn());
  return absl::OkStatus();
}

absl::Status SnapshotStore::ClearOwn() {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> all, fs_->List(root_));
  for (const std::string& name : all) {
    BALLAST_RETURN_IF_ERROR(ClearUnmarked(fs_, root_, name, owner_));
  }
  BALLAST_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids, Ids());
  for (const uint64_t id : ids) {
    // An unreadable one is not ours, or another server is just removing it.
    const auto names = fs_->List(Directory(id));
    if (!names.ok()) BALLAST_LOG(WARN) << names.status().message();
    if (!names.ok() || !IsLeftOver(id, *names)) continue;
    const auto by = ReadWholeFile(fs_, TakingPath(id), kOwnerBytesMax);
    if (by.ok() && *by == owner_) BALLAST_RETURN_IF_ERROR(Remove(id));
  }
  return absl::OkStatus();
}

bool SnapshotStore::IsLeftOver(uint64_t id, const std::vector<std::string>& files) const {
  if (std::find(files.begin(), files.end(), kManifest) == files.end()) return true;
  const absl::StatusOr<SnapshotManifest> manifest = Find(id);
  return manifest.ok() && manifest->name == kPassingSnapshotName;
}

absl::Status SnapshotStore::Begin(uint64_t id, const std::string& job, const std::string& name,
                                  uint64_t bytes) {
  const bool passing = name == kPassingSnapshotName;
  if (!passing) BALLAST_RETURN_IF_ERROR(CheckSnapshotName(name));
  const absl::Status found = passing ? absl::NotFoundError("") : Find(job, name).status();
  if (found.ok()) {
    return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                         absl::StrCat("job \"", job, "\" has a snapshot \"", name,
                                      "\" already; choose another name, or delete that one"),
                         {.job = job});
  }
  if (!absl::IsNotFound(found)) return found;
  BALLAST_RETURN_IF_ERROR(MakeLastingDirectory(fs_, root_));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free, fs_->FreeBytes(root_));
  if (free < bytes) {
    return ReasonedError(
        absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
        absl::StrCat("a snapshot of job \"", job, "\" takes ", BytesText(bytes), " in ", root_,
                     "; ", free, " are free. Free some, or delete older snapshots"),
        {.job = job});
  }
  BALLAST_FAILPOINT_RETURN("snapshot.before_begin");
  const auto make = [this](const std::string& directory) -> absl::Status {
    BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(directory));
    return ReplaceFile(fs_, absl::StrCat(directory, "/", kTaking), owner_);
  };
  BALLAST_RETURN_IF_ERROR(MakeMarkedDirectory(fs_, root_, JobIdText(id), owner_, make));
  const absl::Status made = fs_->SyncDirectory(root_);
  if (!made.ok()) Remove(id).IgnoreError();
  if (made.ok()) BALLAST_FAILPOINT_RETURN("snapshot.after_begin");
  return made;
}

absl::StatusOr<std::unique_ptr<ImageFile>> SnapshotStore::CreatePart(uint64_t id,
                                                                     const JobPlan& plan,
                                                                     const Layout& layout) {
  const std::string directory = Directory(id);
  if (!fs_->List(directory).ok()) {
    return ReasonedError(
        absl::StatusCode::kFailedPrecondition, Reason::kUnsupported,
        absl::StrCat("server ", self_, " does not see ", directory, ", which the job's home has ",
                     "made: storage.snapshot_dir has to be one directory that all servers share"),
        {.job = plan.spec.name, .server = static_cast<int>(self_)});
  }
  BALLAST_FAILPOINT_RETURN("snapshot.before_part");
  const StorageOptions options = PartOptions(plan, layout, self_);
  auto part = ImageFile::Create(fs_, PartPath(id, self_), options.images, options.shapes);
  BALLAST_FAILPOINT_RETURN("snapshot.after_part");
  return part;
}

absl::Status SnapshotStore::Commit(const SnapshotManifest& manifest) {
  BALLAST_FAILPOINT_RETURN("snapshot.before_manifest");
  BALLAST_RETURN_IF_ERROR(ReplaceFile(fs_, ManifestPath(manifest.id), EncodeManifest(manifest)));
  BALLAST_FAILPOINT("snapshot.after_manifest");
  // It has no meaning any more, except for a passing one, which goes with the home that took it.
  if (manifest.name != kPassingSnapshotName) fs_->Remove(TakingPath(manifest.id)).IgnoreError();
  return absl::OkStatus();
}

absl::Status SnapshotStore::DropPart(uint64_t id) {
  const absl::Status removed = fs_->Remove(PartPath(id, self_));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  return absl::OkStatus();
}

absl::Status SnapshotStore::Remove(uint64_t id) {
  BALLAST_FAILPOINT_RETURN("snapshot.before_remove");
  // So that Clear finds the remains of a crash; on a full disk it may be left.
  ReplaceFile(fs_, TakingPath(id), owner_).IgnoreError();
  const absl::Status removed = fs_->Remove(ManifestPath(id));
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  if (removed.ok()) BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(Directory(id)));
  BALLAST_FAILPOINT_RETURN("snapshot.after_remove");
  // Before the mark, by which Clear finds their remains.
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> parts, PartsOf(id));
  for (const std::string& part : parts) BALLAST_RETURN_IF_ERROR(fs_->Remove(part));
  // A power loss must not bring back a part, also one of DropPart, without the mark.
  const absl::Status flushed = fs_->SyncDirectory(Directory(id));
  if (!flushed.ok() && !absl::IsNotFound(flushed)) return flushed;
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(Directory(id)));
  return fs_->SyncDirectory(root_);
}

absl::StatusOr<std::vector<std::string>> SnapshotStore::PartsOf(uint64_t id) const {
  std::vector<std::string> parts;
  const absl::StatusOr<std::vector<std::string>> files = fs_->List(Directory(id));
  if (absl::IsNotFound(files.status())) return parts;
  BALLAST_RETURN_IF_ERROR(files.status());
  for (const std::string& file : *files) {
    if (absl::StartsWith(file, kPart)) parts.push_back(absl::StrCat(Directory(id), "/", file));
  }
  return parts;
}

absl::StatusOr<uint64_t> SnapshotStore::BytesOnDisk(uint64_t id) const {
  BALLAST_ASSIGN_OR_RETURN(std::vector<std::string> paths, PartsOf(id));
  paths.push_back(ManifestPath(id));
  uint64_t bytes = 0;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::unique_ptr<File>> file = fs_->Open(path, {});
    if (path == paths.back() && absl::IsNotFound(file.status())) continue;
    BALLAST_RETURN_IF_ERROR(file.status());
    BALLAST_ASSIGN_OR_RETURN(const uint64_t more, (*file)->Size());
    bytes += more;
  }
  return bytes;
}

absl::StatusOr<SnapshotManifest> SnapshotStore::Find(uint64_t id) const {
  BALLAST_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadWholeFile(fs_, ManifestPath(id), kManifestBytesMax));
  absl::StatusOr<SnapshotManifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return Lost(Directory(id), manifest.status().message());
  manifest->tenant = tenant_;
  if (manifest->id == id) return manifest;
  return Lost(Directory(id), absl::StrCat("its manifest is of ", JobIdText(manifest->id)));
}

absl::StatusOr<std::vector<SnapshotManifest>> SnapshotStore::List() const {
  std::vector<SnapshotManifest> found;
  const absl::StatusOr<std::vector<uint64_t>> ids = Ids();
  if (absl::IsNotFound(ids.status())) return found;
  BALLAST_RETURN_IF_ERROR(ids.status());
  for (const uint64_t id : *ids) {
    absl::StatusOr<SnapshotManifest> manifest = Find(id);
    if (manifest.ok()) {
      if (manifest->name != kPassingSnapshotName) found.push_back(*std::move(manifest));
    } else if (!absl::IsNotFound(manifest.status())) {
      BALLAST_LOG(ERROR) << manifest.status().message();
    }
  }
  std::sort(found.begin(), found.end(), [](const SnapshotManifest& a, const SnapshotManifest& b) {
    return std::tie(a.created_s, a.round, a.id) < std::tie(b.created_s, b.round, b.id);
  });
  return found;
}

absl::StatusOr<SnapshotManifest> SnapshotStore::Find(const std::string& job,
                                                     const std::string& name) const {
  BALLAST_ASSIGN_OR_RETURN(std::vector<SnapshotManifest> all, List());
  for (SnapshotManifest& manifest : all) {
    if (manifest.job == job && manifest.name == name) return std::move(manifest);
  }
  return ReasonedError(absl::StatusCode::kNotFound, Reason::kUnknownJob,
                       absl::StrCat("job \"", job, "\" has no snapshot \"", name, "\" in ", root_,
                                    "; `ballastctl snapshot list` shows those there are"),
                       {.job = job});
}

absl::StatusOr<std::unique_ptr<ImageFile>> SnapshotStore::OpenPart(uint64_t id, const JobPlan& plan,
                                                                   const Layout& layout,
                                                                   uint32_t server) const {
  StorageOptions options = PartOptions(plan, layout, server);
  options.images.read_only = true;
  auto part = ImageFile::Open(fs_, PartPath(id, server), options.images, options.shapes);
  if (absl::IsNotFound(part.status()) || absl::IsDataLoss(part.status())) {
    return Lost(Directory(id), part.status().message());
  }
  return part;
}

absl::Status SnapshotStore::LinkParts(uint64_t id, const ImageBase& base,
                                      const std::string& directory) const {
  BALLAST_FAILPOINT_RETURN("fork.before_links");
  for (const ImageBasePart& part : base.parts) {
    BALLAST_RETURN_IF_ERROR(
        fs_->Link(PartPath(id, part.server), ImageBasePartPath(directory, part.server)));
  }
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(directory));
  BALLAST_RETURN_IF_ERROR(ReplaceFile(fs_, ImageBasePath(directory), EncodeImageBase(base)));
  BALLAST_FAILPOINT_RETURN("fork.after_links");
  return absl::OkStatus();
}

absl::Status SnapshotStore::Lend(const SnapshotManifest& manifest, const JobPlan& from,
                                 const Layout& layout, const JobPlan& to,
                                 const std::string& directory) const {
  ImageBase base{.job = to.job,
                 .server = self_,
                 .lender = from.job,
                 .round = manifest.round,
                 .optimizer = static_cast<uint32_t>(from.spec.optimizer),
                 .formula_id = from.spec.formula_id,
                 .tile_elements = from.spec.tile_elements};
  for (const uint32_t server : from.servers) {
    std::vector<uint32_t> extents;
    for (uint32_t extent = 0; extent < layout.extents().size(); ++extent) {
      if (to.owner[extent] == self_ && from.owner[extent] == server) extents.push_back(extent);
    }
    if (extents.empty()) continue;
    BALLAST_ASSIGN_OR_RETURN(const auto part, OpenPart(manifest.id, from, layout, server));
    for (const uint32_t extent : extents) {
      if (part->Versions(extent) == std::vector<uint64_t>{manifest.round}) continue;
      return Lost(Directory(manifest.id),
                  absl::StrCat(PartPath(manifest.id, server), " lacks extent ", extent));
    }
    base.parts.push_back({server, PartOptions(from, layout, server).shapes});
  }
  if (base.parts.empty()) return absl::OkStatus();
  const absl::Status linked = LinkParts(manifest.id, base, directory);
  if (!absl::IsUnimplemented(linked)) return linked;
  for (const ImageBasePart& part : base.parts) {
    const absl::Status removed = fs_->Remove(ImageBasePartPath(directory, part.server));
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  return linked;
}

absl::Status SnapshotStore::Verify(const SnapshotManifest& manifest, const JobPlan& plan,
                                   const std::function<absl::Status()>& go_on) const {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  BALLAST_ASSIGN_OR_RETURN(const Arena to,
                           Arena::Create(ImageFile::BufferBytes(
                               {0, layout.extent_elements(), StateArrayCount(plan.spec)})));
  for (const uint32_t server : plan.servers) {
    const StorageOptions options = PartOptions(plan, layout, server);
    BALLAST_ASSIGN_OR_RETURN(const auto part, OpenPart(manifest.id, plan, layout, server));
    for (const ImageShape& shape : options.shapes) {
      BALLAST_RETURN_IF_ERROR(go_on());
      const absl::Status read = part->Read(shape.extent, manifest.round, to.data());
      if (!read.ok()) return Lost(Directory(manifest.id), read.message());
    }
  }
  return absl::OkStatus();
}

}  // namespace ballast::server
