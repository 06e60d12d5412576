#include "server/exchange/exports.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/io/sync_path.h"
#include "common/safetensors/index.h"
#include "common/text/names.h"
#include "common/text/units.h"
#include "server/snapshot/marked_directory.h"
#include "server/snapshot/tenant_directory.h"

namespace ballast::server {
namespace {

constexpr char kExporting[] = "EXPORTING";
constexpr size_t kOwnerBytesMax = 256;
constexpr absl::string_view kStateIndexName = "state.safetensors.index.json";

// The deepest file of an export is three folders below its directory.
constexpr int kDepthMax = 8;

// Nothing for a single file, which needs no index.
absl::Status AddIndex(const std::string& path, const std::vector<const ExportFile*>& files,
                      std::vector<LastFile>* to) {
  if (files.size() < 2) return absl::OkStatus();
  SafetensorsIndex index;
  uint64_t bytes = 0;
  for (const ExportFile* file : files) {
    const std::string name = file->name.substr(file->name.rfind('/') + 1);
    for (const TensorEntry& entry : file->entries) {
      BALLAST_ASSIGN_OR_RETURN(const uint64_t size, SafetensorBytes(entry.dtype, entry.shape));
      bytes += size;
      index.files[entry.name] = name;
    }
  }
  index.total_bytes = bytes;
  BALLAST_ASSIGN_OR_RETURN(std::string text, EncodeSafetensorsIndex(index));
  to->push_back({path, std::move(text)});
  return absl::OkStatus();
}

// The indexes, then what job it is of.
absl::StatusOr<std::vector<LastFile>> LastFiles(const std::vector<ExportShard>& shards,
                                                const SnapshotManifest& manifest) {
  std::vector<const ExportFile*> weights, state;
  for (const ExportShard& shard : shards) {
    weights.push_back(&shard.weights);
    if (!shard.state.name.empty()) state.push_back(&shard.state);
  }
  std::vector<LastFile> files;
  BALLAST_RETURN_IF_ERROR(AddIndex(std::string(kSafetensorsIndexName), weights, &files));
  BALLAST_RETURN_IF_ERROR(
      AddIndex(absl::StrCat(kStateDirectory, "/", kStateIndexName), state, &files));
  files.push_back({std::string(kJobFile), EncodeManifest(manifest)});
  return files;
}

uint64_t BytesOf(const std::vector<LastFile>& files) {
  uint64_t bytes = 0;
  for (const LastFile& file : files) bytes += file.content.size();
  return bytes;
}

// Of a file, or of the files in a directory; 0 if neither exists.
absl::StatusOr<uint64_t> BytesAt(FileSystem* fs, const std::string& path, int depth = 0) {
  if (depth > kDepthMax) return absl::InternalError(absl::StrCat(path, " is too deep a folder"));
  uint64_t bytes = 0;
  const absl::StatusOr<std::vector<std::string>> names = fs->List(path);
  if (absl::IsNotFound(names.status())) return bytes;
  if (!names.ok()) {
    BALLAST_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs->Open(path, {}));
    return file->Size();
  }
  for (const std::string& name : *names) {
    BALLAST_ASSIGN_OR_RETURN(const uint64_t more,
                             BytesAt(fs, absl::StrCat(path, "/", name), depth + 1));
    bytes += more;
  }
  return bytes;
}

}  // namespace

Exports Exports::Of(const std::string& tenant) const {
  return Exports(fs_, TenantDirectory(root_, tenant), owner_);
}

absl::Status Exports::Clear() {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> tenants, TenantsBelow(fs_, root_));
  for (const std::string& tenant : tenants) BALLAST_RETURN_IF_ERROR(Of(tenant).ClearOwn());
  return absl::OkStatus();
}

absl::Status Exports::ClearOwn() {
  const auto names = fs_->List(root_);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    BALLAST_RETURN_IF_ERROR(ClearUnmarked(fs_, root_, name, owner_));
    if (!CheckSnapshotName(name).ok()) continue;
    const auto by =
        ReadWholeFile(fs_, absl::StrCat(Directory(name), "/", kExporting), kOwnerBytesMax);
    if (by.ok() && *by == owner_) BALLAST_RETURN_IF_ERROR(Remove(name));
  }
  return absl::OkStatus();
}

absl::Status Exports::CheckNew(const std::string& name) const {
  BALLAST_RETURN_IF_ERROR(CheckSnapshotName(name));
  const std::string directory = Directory(name);
  const absl::Status listed = fs_->List(directory).status();
  if (absl::IsNotFound(listed)) return absl::OkStatus();
  if (!listed.ok()) return listed;
  return ReasonedError(absl::StatusCode::kAlreadyExists, Reason::kNameInUse,
                       absl::StrCat(directory, " is there already; choose another name with ",
                                    "--name, or remove it"));
}

absl::Status Exports::CheckRoom(uint64_t bytes, uint64_t snapshot_bytes,
                                const std::string& snapshot_root) const {
  BALLAST_RETURN_IF_ERROR(MakeLastingDirectory(fs_, root_));
  uint64_t before = 0;
  if (snapshot_bytes != 0) {
    BALLAST_RETURN_IF_ERROR(MakeLastingDirectory(fs_, snapshot_root));
    BALLAST_ASSIGN_OR_RETURN(const bool together, fs_->ShareSpace(root_, snapshot_root));
    if (together) before = snapshot_bytes;
  }
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free, fs_->FreeBytes(root_));
  if (before <= free && bytes <= free - before) return absl::OkStatus();
  std::string what = absl::StrCat("the export takes ", BytesText(bytes), " in ", root_);
  if (before != 0) {
    absl::StrAppend(&what, ", and the snapshot that is taken for it ", BytesText(before), " in ",
                    snapshot_root, ", which share one file system");
  }
  return ReasonedError(
      absl::StatusCode::kResourceExhausted, Reason::kOverBudget,
      absl::StrCat(what, "; ", free, " are free. Free some, choose another storage.export_dir",
                   before != 0 ? ", or export a snapshot that is there with --snapshot" : ""));
}

absl::Status Exports::Begin(const std::string& name, uint64_t bytes, bool state) {
  BALLAST_RETURN_IF_ERROR(CheckNew(name));
  BALLAST_RETURN_IF_ERROR(CheckRoom(bytes, /*snapshot_bytes=*/0, root_));
  BALLAST_FAILPOINT_RETURN("export.before_begin");
  const auto make = [this, state](const std::string& path) { return MakeMarked(path, state); };
  BALLAST_RETURN_IF_ERROR(MakeMarkedDirectory(fs_, root_, name, owner_, make));
  const absl::Status made = SyncNew();
  if (!made.ok()) Remove(name).IgnoreError();
  return made;
}

absl::Status Exports::MakeMarked(const std::string& directory, bool state) {
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(directory));
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(directory));
  BALLAST_FAILPOINT_RETURN("export.before_mark");
  BALLAST_RETURN_IF_ERROR(ReplaceFile(fs_, absl::StrCat(directory, "/", kExporting), owner_));
  if (state) {
    BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(absl::StrCat(directory, "/", kStateDirectory)));
    BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(directory));
  }
  BALLAST_FAILPOINT_RETURN("export.after_mark");
  return absl::OkStatus();
}

absl::Status Exports::SyncNew() {
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(root_));
  BALLAST_FAILPOINT_RETURN("export.after_begin");
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Exports::LastBytes(const std::vector<ExportShard>& shards,
                                            const SnapshotManifest& manifest) {
  BALLAST_ASSIGN_OR_RETURN(const std::vector<LastFile> files, LastFiles(shards, manifest));
  return BytesOf(files);
}

uint64_t Exports::LastBytes(const UniversalMoment& moment) {
  return BytesOf(UniversalRest(moment));
}

absl::Status Exports::Commit(const std::string& name, const std::vector<ExportShard>& shards,
                             const SnapshotManifest& manifest) {
  const std::string directory = Directory(name);
  BALLAST_FAILPOINT_RETURN("export.before_commit");
  BALLAST_ASSIGN_OR_RETURN(const std::vector<LastFile> files, LastFiles(shards, manifest));
  for (const LastFile& file : files) {
    BALLAST_RETURN_IF_ERROR(
        ReplaceFile(fs_, absl::StrCat(directory, "/", file.path), file.content));
  }
  return RemoveMark(directory);
}

absl::Status Exports::CommitUniversal(const std::string& name, const UniversalMoment& moment) {
  const std::string directory = Directory(name);
  BALLAST_FAILPOINT_RETURN("export.before_commit");
  BALLAST_RETURN_IF_ERROR(WriteUniversalRest(fs_, directory, moment));
  return RemoveMark(directory);
}

// While the mark exists, a restart removes all of it.
absl::Status Exports::RemoveMark(const std::string& directory) {
  BALLAST_RETURN_IF_ERROR(fs_->Remove(absl::StrCat(directory, "/", kExporting)));
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(directory));
  BALLAST_FAILPOINT("export.after_commit");
  return absl::OkStatus();
}

// Another server may not know yet and still write files there: the name is free at once.
absl::Status Exports::Remove(const std::string& name) {
  const std::string gone = UnmarkedPath(root_, name, owner_);
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(gone));
  const absl::Status moved = fs_->Rename(Directory(name), gone);
  if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(gone));
  return fs_->SyncDirectory(root_);
}

bool Exports::Exists(const std::string& name) const {
  const auto there = [this](const std::string& path) {
    return !absl::IsNotFound(fs_->List(path).status());
  };
  return there(Directory(name)) || there(UnmarkedPath(root_, name, owner_));
}

absl::StatusOr<uint64_t> Exports::BytesOnDisk(const std::string& name) const {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t whole, BytesAt(fs_, Directory(name)));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t left, BytesAt(fs_, UnmarkedPath(root_, name, owner_)));
  return whole + left;
}

}  // namespace ballast::server
