#include "server/cluster/job_store.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/log.h"
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
constexpr char kDeleting[] = "deleting";

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

absl::Status Damaged(const std::string& path, absl::string_view why) {
  return ReasonedError(
      absl::StatusCode::kDataLoss, Reason::kStateLost,
      absl::StrCat(path, " is damaged (", why,
                   "); put back a copy, or move the job's directory away to give ", "the job up"));
}

}  // namespace

std::string JobStore::Directory(uint64_t job) const {
  return absl::StrCat(root_, "/", absl::Hex(job, absl::kZeroPad16));
}

absl::StatusOr<std::vector<JobPlan>> JobStore::Load() {
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(root_));
  BALLAST_RETURN_IF_ERROR(fs_->SyncDirectory(root_.substr(0, root_.rfind('/') + 1)));
  BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->List(root_));
  std::vector<JobPlan> plans;
  for (const std::string& name : names) {
    uint64_t job = 0;
    if (name.size() != 16 || !absl::SimpleHexAtoi(name, &job) || job == 0) continue;
    const std::string directory = absl::StrCat(root_, "/", name);
    BALLAST_ASSIGN_OR_RETURN(const std::vector<std::string> files, fs_->List(directory));
    const auto has = [&files](const char* file) {
      return std::find(files.begin(), files.end(), file) != files.end();
    };
    if (has(kDeleting) || (has(kMaking) && !has(kManifest))) {
      BALLAST_LOG(WARN) << "clearing away " << directory << ", which was left half "
                        << (has(kDeleting) ? "deleted" : "made");
      BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(directory));
      continue;
    }
    absl::StatusOr<JobPlan> plan = LoadOne(directory);
    if (absl::IsNotFound(plan.status())) return Damaged(directory, "its manifest is missing");
    BALLAST_RETURN_IF_ERROR(plan.status());
    if (plan->job != job) return Damaged(absl::StrCat(root_, "/", name), "it is another job's");
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

absl::Status JobStore::Save(const JobPlan& plan) {
  const std::string body = codec_.encode(plan);
  std::string bytes(kMagic, sizeof(kMagic));
  PutU32(kVersion, &bytes);
  PutU32(static_cast<uint32_t>(body.size()), &bytes);
  PutU32(Crc32c(body.data(), body.size()), &bytes);
  return ReplaceFile(fs_, absl::StrCat(Directory(plan.job), "/", kManifest), bytes + body);
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Create(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  const std::string directory = Directory(plan.job);
  BALLAST_RETURN_IF_ERROR(fs_->MakeDirectory(directory));
  BALLAST_RETURN_IF_ERROR(Mark(directory, kMaking));
  absl::StatusOr<std::unique_ptr<JobStorage>> storage =
      JobStorage::Create(fs_, directory, StorageOptionsOf(plan, layout, self_, checkpoint_rounds_));
  absl::Status status = storage.status();
  if (status.ok()) status = fs_->SyncDirectory(root_);
  if (status.ok()) status = Save(plan);
  if (status.ok()) status = fs_->Remove(absl::StrCat(directory, "/", kMaking));
  if (status.ok()) return storage;
  storage = status;
  (void)fs_->RemoveAll(directory);
  return status;
}

absl::Status JobStore::Mark(const std::string& directory, const char* name) {
  BALLAST_RETURN_IF_ERROR(
      fs_->Open(absl::StrCat(directory, "/", name), {.mode = OpenMode::kCreate}).status());
  return fs_->SyncDirectory(directory);
}

absl::StatusOr<std::unique_ptr<JobStorage>> JobStore::Open(const JobPlan& plan) {
  BALLAST_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSpec(plan.spec));
  return JobStorage::Open(fs_, Directory(plan.job),
                          StorageOptionsOf(plan, layout, self_, checkpoint_rounds_));
}

absl::Status JobStore::Remove(uint64_t job) {
  const std::string directory = Directory(job);
  const absl::Status marked = Mark(directory, kDeleting);
  if (!marked.ok() && !absl::IsNotFound(marked)) return marked;
  BALLAST_RETURN_IF_ERROR(fs_->RemoveAll(directory));
  return fs_->SyncDirectory(root_);
}

}  // namespace ballast::server
