#include "server/durability/log/log_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "common/text/units.h"
#include "server/durability/log/log_format.h"

namespace ballast::server {
namespace {

constexpr uint32_t kSegmentsMin = 3;
constexpr uint32_t kSegmentsMax = 1000;
constexpr uint64_t kSegmentBytesMin = 3 * kPageBytes;  // a header and the smallest records

absl::Status CheckOptions(const LogOptions& options) {
  if (options.segments < kSegmentsMin || options.segments > kSegmentsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a gradient log has ", kSegmentsMin, " to ",
                                                   kSegmentsMax, " segments, not ",
                                                   options.segments));
  }
  if (options.segment_bytes % kPageBytes != 0 || options.segment_bytes < kSegmentBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat("a log segment has a multiple of ", kPageBytes,
                                                   " bytes and at least ", kSegmentBytesMin,
                                                   ", not ", options.segment_bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(FileSystem* fs, const std::string& directory, uint64_t bytes) {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs->FreeBytes(directory));
  if (bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("a gradient log in ", directory, " needs ",
                                                   BytesText(bytes), ", free are ", free_bytes,
                                                   "; free space or make the log smaller"));
}

// Writes zeros over the whole file, so that later writes neither allocate nor change its length.
absl::Status FillWithZeros(File* file, uint64_t bytes, const Arena& zeros) {
  for (uint64_t offset = 0; offset < bytes;) {
    const ConstBytes part{zeros.data(), std::min<uint64_t>(zeros.bytes(), bytes - offset)};
    BALLAST_RETURN_IF_ERROR(file->WriteAt(offset, {part}));
    offset += part.bytes;
  }
  return file->Sync();
}

}  // namespace

std::string LogFiles::Path(uint32_t index) const {
  return absl::StrCat(directory_, "/", SegmentName(index));
}

absl::StatusOr<LogFiles> LogFiles::Create(FileSystem* fs, const std::string& directory,
                                          const LogOptions& options) {
  BALLAST_RETURN_IF_ERROR(CheckOptions(options));
  BALLAST_RETURN_IF_ERROR(CheckRoom(fs, directory, GradientLog::DiskBytes(options)));
  LogFiles files(directory, options.segment_bytes);
  if (absl::Status status = files.CreateAll(fs, options); !status.ok()) {
    files.Remove(fs);
    return status;
  }
  return files;
}

void LogFiles::Remove(FileSystem* fs) {
  while (!files_.empty()) {
    files_.pop_back();
    fs->Remove(Path(count())).IgnoreError();  // An earlier error is the one to tell.
  }
}

absl::Status LogFiles::CreateAll(FileSystem* fs, const LogOptions& options) {
  // Room for all of it first: running out of it is noticed before anything long begins.
  for (uint32_t index = 0; index < options.segments; ++index) {
    BALLAST_ASSIGN_OR_RETURN(
        std::unique_ptr<File> file,
        fs->Open(Path(index),
                 {.mode = OpenMode::kCreateNew, .direct = options.direct, .urgent = true}));
    files_.push_back(std::move(file));
    BALLAST_RETURN_IF_ERROR(files_.back()->Allocate(options.segment_bytes));
  }
  BALLAST_ASSIGN_OR_RETURN(const Arena zeros, Arena::Create(Arena::kAlignmentBytes));
  for (const std::unique_ptr<File>& file : files_) {
    BALLAST_RETURN_IF_ERROR(FillWithZeros(file.get(), options.segment_bytes, zeros));
  }
  return fs->SyncDirectory(directory_);
}

absl::StatusOr<LogFiles> LogFiles::Open(FileSystem* fs, const std::string& directory,
                                        const LogOptions& options) {
  BALLAST_RETURN_IF_ERROR(CheckOptions(options));
  LogFiles files(directory, options.segment_bytes);
  std::string missing;
  for (uint32_t index = 0; index < options.segments; ++index) {
    absl::StatusOr<std::unique_ptr<File>> file = fs->Open(
        files.Path(index), {.mode = OpenMode::kWrite, .direct = options.direct, .urgent = true});
    if (absl::IsNotFound(file.status())) {
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", SegmentName(index));
      continue;
    }
    if (!file.ok()) return file.status();
    files.files_.push_back(*std::move(file));
  }
  if (files.files_.empty()) {
    return absl::NotFoundError(absl::StrCat("no gradient log in ", directory));
  }
  if (!missing.empty()) {
    return absl::DataLossError(absl::StrCat("the gradient log in ", directory, " lacks ", missing,
                                            " of its ", options.segments,
                                            " segments; put the files back"));
  }
  return files;
}

absl::Status LogFiles::Read(uint32_t index, uint64_t offset, uint64_t bytes, void* to) const {
  BALLAST_ASSIGN_OR_RETURN(const size_t count, file(index)->ReadAt(offset, bytes, to));
  if (count == bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Path(index), " ends at byte ", offset + count, " of ",
                                          segment_bytes_, "; it was cut off"));
}

}  // namespace ballast::server
