#include "common/safetensors/writer.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/safetensors/reader.h"
#include "common/text/names.h"

namespace ballast {
namespace {

constexpr uint64_t kLargeBytes = uint64_t{64} << 10;

std::string DirectoryOf(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsWriter::FileBytes(std::vector<TensorEntry> tensors,
                                                      std::map<std::string, std::string> metadata,
                                                      const SafetensorsEncodeOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(
      const SafetensorsHead head,
      EncodeSafetensorsHeader(std::move(tensors), std::move(metadata), options));
  return head.header.file_bytes();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    FileSystem* fs, const std::string& path, std::vector<TensorEntry> tensors,
    std::map<std::string, std::string> metadata, const SafetensorsEncodeOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(
      SafetensorsHead head,
      EncodeSafetensorsHeader(std::move(tensors), std::move(metadata), options));
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(fs, path, std::move(head.header)));
  BALLAST_RETURN_IF_ERROR(writer->Begin(head.bytes));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(FileSystem* fs, std::string path, SafetensorsHeader header)
    : fs_(fs),
      path_(std::move(path)),
      part_path_(path_ + ".part"),
      directory_(DirectoryOf(path_)),
      header_(std::move(header)),
      written_bytes_(header_.tensors.size()) {}

SafetensorsWriter::~SafetensorsWriter() {
  file_.reset();  // First, so that its space is free when this returns.
  // What cannot be removed now is removed by the next attempt.
  if (listed_) fs_->Remove(part_path_).IgnoreError();
}

absl::Status SafetensorsWriter::Begin(const std::string& head) {
  const absl::Status removed = fs_->Remove(part_path_);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  BALLAST_RETURN_IF_ERROR(CheckSpace());
  // New, so that no link under this name leads elsewhere.
  BALLAST_ASSIGN_OR_RETURN(file_,
                           fs_->Open(part_path_, {.mode = OpenMode::kCreateNew, .direct = true}));
  listed_ = true;
  BALLAST_RETURN_IF_ERROR(file_->Allocate(header_.file_bytes()));
  return file_->WriteAt(0, {ConstBytes{head.data(), head.size()}});
}

absl::Status SafetensorsWriter::CheckSpace() {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs_->FreeBytes(directory_));
  if (header_.file_bytes() <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path_, ": needs ", header_.file_bytes(), " bytes, but ", free_bytes,
                   " are free; free space on this file system or choose another directory"));
}

absl::Status SafetensorsWriter::WriteAt(size_t tensor, uint64_t offset,
                                        absl::Span<const ConstBytes> parts) {
  if (file_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": is finished"));
  }
  uint64_t bytes = 0;
  for (const ConstBytes& part : parts) bytes += part.bytes;
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsRange(path_, header_, tensor, offset, bytes));
  absl::Status put = Put(header_.data_offset + header_.tensors[tensor].begin + offset, parts);
  if (put.ok()) {
    written_bytes_[tensor].fetch_add(bytes);
  } else {
    MutexLock lock(&mu_);
    if (failed_.ok()) failed_ = put;
  }
  return put;
}

absl::Status SafetensorsWriter::Put(uint64_t offset, absl::Span<const ConstBytes> parts) {
  const bool large = std::any_of(parts.begin(), parts.end(),
                                 [](const ConstBytes& part) { return part.bytes >= kLargeBytes; });
  if (!large) return file_->WriteAt(offset, parts);
  for (const ConstBytes& part : parts) {
    BALLAST_RETURN_IF_ERROR(part.bytes >= kLargeBytes ? PutLarge(offset, part)
                                                      : file_->WriteAt(offset, {part}));
    offset += part.bytes;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::PutLarge(uint64_t offset, const ConstBytes& part) {
  const char* const data = static_cast<const char*>(part.data);
  const uint64_t before = (kPageBytes - offset % kPageBytes) % kPageBytes;
  if ((reinterpret_cast<uintptr_t>(data) + before) % kPageBytes != 0) {
    return file_->WriteAt(offset, {part});
  }
  const uint64_t pages = (part.bytes - before) / kPageBytes * kPageBytes;
  const uint64_t behind = part.bytes - before - pages;
  BALLAST_RETURN_IF_ERROR(file_->WriteAt(offset, {ConstBytes{data, before}}));
  BALLAST_RETURN_IF_ERROR(file_->WriteAt(offset + before, {ConstBytes{data + before, pages}}));
  return file_->WriteAt(offset + before + pages, {ConstBytes{data + before + pages, behind}});
}

absl::Status SafetensorsWriter::CheckWritten() const {
  {
    MutexLock lock(&mu_);
    if (!failed_.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": a write failed, begin anew: ", failed_.message()));
    }
  }
  for (size_t i = 0; i < written_bytes_.size(); ++i) {
    const TensorEntry& tensor = header_.tensors[i];
    const uint64_t written = written_bytes_[i].load();
    if (written == tensor.bytes()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": tensor ", Quoted(tensor.name), " has ", tensor.bytes(),
                     " bytes, but ", written, " were written; write each byte once"));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (file_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": is finished"));
  }
  BALLAST_RETURN_IF_ERROR(CheckWritten());
  const absl::Status synced = file_->Sync();
  if (!synced.ok()) {
    MutexLock lock(&mu_);
    failed_ = synced;  // A second Sync would prove nothing.
    return synced;
  }
  BALLAST_RETURN_IF_ERROR(fs_->Rename(part_path_, path_));
  listed_ = false;
  file_.reset();
  return fs_->SyncDirectory(directory_);
}

}  // namespace ballast
