#include "server/cluster/job_store.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/names.h"
#include "common/base/reason.h"
#include "common/base/status_macros.h"
#include "server/round/job_plan.h"
#include "server/round/recovery.h"

namespace ballast::server {
namespace {

// Manifest: magic, format version, length and CRC32C of what follows, then the encoded plan.
constexpr char kMagic[8] = {'B', 'L', 'S', 'T', 'J', 'O', 'B', '\n'};
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 20;
constexpr size_t kManifestBytesMax = size_t{64} << 20;
constexpr char kManifest[] = "manifest";
constexpr char kMaking[] = "making";
constexpr char kGone[] = ".gone";
constexpr char kLayout[] = "layout-";
constexpr size_t kNameBytes = 16;  // of a job's directory

void PutU32(uint32_t value, std::string* to) {
  for (int shift = 0; shift < 32; shift += 8) to->push_back(static_cast<char>(value >> shift));
}

uint32_t GetU32(const std::string& from, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<unsigned char>(from[at + i])} << (8 * i);
  }
  return value;
}

// The directory that holds the name behind `slash`, which is npos for the first of a relative path.
std::string ParentAt(const std::string& path, size_t slash) {
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status Damaged(const std::string& path, absl::string_view why) {
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(path, " is damaged (", why,
                   "); put back a copy, or move the job's directory away to give ", "the job up"));
}

// Returns when every name on the way to `path` survives power loss; this process may have made it,
// or one before it that ended too soon. A parent of the data directory that this user may not open,
// or whose file system flushes no directories, holds no name that this user's process has made.
absl::Status SyncPathTo(FileSystem* fs, const std::string& path) {
  size_t slash = path.rfind('/');
  BALLAST_RETURN_IF_ERROR(fs->SyncDirectory(ParentAt(path, slash)));
  while (slash != std::string::npos && slash != 0) {
    slash = path.rfind('/', slash - 1);
    const absl::Status status = fs->SyncDirectory(ParentAt(path, slash));
    if (!absl::IsPermissionDenied(status) && !absl::IsInternal(status)) {
      BALLAST_RETURN_IF_ERROR(status);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string JobStore::Directory(uint64_t job) const {
  return absl::StrCat(root_, "/", JobIdText(job));
}

std::string JobStore::FilesOf(const JobPlan& plan) const {
  const std::string directory = Directory(plan.job);
  if (plan.layout_version == 1) return directory;
  return absl::StrCat(directory, "/", kLayout, plan.layout_version);
}

absl::StatusOr<std::vector<JobPlan>> JobStore::Load() {
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(root_));
  BALLAST_RETURN_IF_ERROR(SyncPathTo(fs_, root_));
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->List(root_));
  std::vector<JobPlan> plans;
  for (const std::string& name : names) {
    const std::string id = name.substr(0, kNameBytes);
    uint64_t job = 0;
    if (id.size() != kNameBytes || !absl::SimpleHexAtoi(id, &job) || job == 0) continue;
    const std::string directory = absl::StrCat(root_, "/", name);
    if (name == id + kGone) BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(directory));
    if (name != id) continue;
    BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> files, fs_->List(directory));
    const auto has = [&files](const char* file) {
      return std::find(files.begin(), files.end(), file) != files.end();
    };
    if (files.empty() || (has(kMaking) && !has(kManifest))) {
      BALLAST_LOG(WARN) << "clearing away " << directory << ", which was left half made";
      BALLAST_RETURN_IF_ERROR(Discard(directory));
      continue;
    }
    absl::StatusOr<JobPlan> plan = LoadOne(directory);
    if (absl::IsNotFound(plan.status())) return Damaged(directory, "its manifest is missing");
    BALLAST_RETURN_IF_ERROR(plan.status());
    if (plan->job != job) return Damaged(directory, "it is another job's");
    DropOutgrown(*plan);
    plans.push_back(*std::move(plan));
  }
  return plans;
}

absl::StatusOr<JobPlan> JobStore::Find(uint64_t job) { return LoadOne(Directory(job)); }

absl::StatusOr<JobPlan> JobStore::LoadOne(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kManifest);
  BALLAST_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(fs_, path, kManifestBytesMax));
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return Damaged(path, "no manifest header");
  }
  if (GetU32(bytes, 8) != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has format version ",
                                                      GetU32(bytes, 8), "; this build reads ",
                                                      kVersion, ". Run a newer ballastd"));
  }
  const std::string body = bytes.substr(kHeaderBytes);
  if (GetU32(bytes, 12) != body.size() || GetU32(bytes, 16) != Crc32c(body.data(), body.size())) {
    return Damaged(path, "length or checksum");
  }
  absl::StatusOr<JobPlan> plan = codec_.decode(body);
  if (!plan.ok()) return Damaged(path, plan.status().message());
  return plan;
}

uint64_t JobStore::DiskBytes(const JobPlan& plan, uint32_t server) const {
  const absl::StatusOr<Layout> layout = LayoutOfSpec(plan.spec);
  if (!layout.ok()) return 0;  // Of a plan that was taken: cannot be.
  return JobStorage::DiskBytes(StorageOptionsOf(plan, *layout, server, checkpoint_rounds_));
}

absl::Status JobStore::Save(const JobPlan& plan) {
  const std::string body = codec_.encode(plan);
  std::string bytes(kMagic, sizeof(kMagic));
  PutU32(kVersion, &bytes);
  PutU32(static_cast<uint32_t>(body.size()), &bytes);
  PutU32(Crc32c(body.data(), body.size()), &bytes);
  BALLAST_FAILPOINT_RETURN("manifest.before_replace");
  BALLAST_RETURN_IF_ERROR(
      ReplaceFile(fs_, absl::StrCat(Directory(plan.job), "/", kManifest), bytes + body));
  BALLAST_FAILPOINT_RETURN("manifest.after_replace");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Create(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const std::string directory = Directory(plan.job);
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(directory));
  auto made = CreateMarked(plan, layout, directory);
  if (!made.ok()) Discard(directory).IgnoreError();  // The first error is the one to tell.
  return made;
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::CreateMarked(const JobPlan& plan,
                                                                   const Layout& layout,
                                                                   const std::string& directory) {
  const std::string mark = absl::StrCat(directory, "/", kMaking);
  BALLAST_RETURN_IF_ERROR(fs_->Open(mark, {.mode = OpenMode::kCreate}).status());
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(directory));
  BALLAST_FAILPOINT_RETURN("job.before_create");
  BALLAST_ASSIGN_OR_RETURN(
      std::unique_ptr<JobStorage> storage,
      JobStorage::Create(fs_, directory,
                         StorageOptionsOf(plan, layout, self_, checkpoint_rounds_)));
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(root_));
  BALLAST_RETURN_IF_ERROR(Save(plan));
  BALLAST_RETURN_IF_ERROR(fs_->Remove(mark));
  BALLAST_FAILPOINT("job.after_create");
  return storage;
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Grow(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const std::string files = FilesOf(plan);
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(files));
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(files));
  auto made =
      JobStorage::Create(fs_, files, StorageOptionsOf(plan, layout, self_, checkpoint_rounds_));
  absl::Status status = made.status();
  if (status.ok()) status = fs_->SyncDirectory(Directory(plan.job));
  if (status.ok()) return made;
  fs_->RemoveAll(files).IgnoreError();  // The first error is the one to tell.
  return status;
}

void JobStore::DropOutgrown(const JobPlan& plan) {
  const std::string directory = Directory(plan.job);
  const std::string files = FilesOf(plan);
  const absl::StatusOr<std::vector<std::string>> names = fs_->List(directory);
  absl::Status status = names.status();
  for (size_t i = 0; status.ok() && i < names->size(); ++i) {
    const std::string path = absl::StrCat(directory, "/", (*names)[i]);
    if (absl::StartsWith((*names)[i], kLayout)) {
      if (path != files) status = fs_->RemoveAll(path);
    } else if (plan.layout_version > 1 && (*names)[i] != kManifest) {
      status = fs_->Remove(path);
    }
  }
  if (!status.ok()) BALLAST_LOG(WARN, LogField("run", plan.spec.name)) << "left over: " << status;
}

// Removing many files is not one step, giving their directory another name is.
absl::Status JobStore::Discard(const std::string& directory) {
  const std::string gone = directory + kGone;
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(gone));
  BALLAST_FAILPOINT("job.before_remove");
  BALLAST_RETURN_IF_ERROR(fs_->Rename(directory, gone));
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(root_));
  BALLAST_FAILPOINT("job.after_remove");
  return fs_->RemoveAll(gone);
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Open(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  return JobStorage::Open(fs_, FilesOf(plan),
                          StorageOptionsOf(plan, layout, self_, checkpoint_rounds_));
}

absl::Status JobStore::Remove(uint64_t job) {
  const absl::Status status = Discard(Directory(job));
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace ballast::server
