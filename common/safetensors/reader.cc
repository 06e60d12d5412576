#include "common/safetensors/reader.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/names.h"

namespace ballast {
namespace {

constexpr uint64_t kLengthBytes = sizeof(uint64_t);

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// Fewer bytes than the file had a moment ago are an error as well.
absl::Status ReadAll(File* file, const std::string& path, uint64_t offset, size_t bytes, void* to) {
  BALLAST_ASSIGN_OR_RETURN(const size_t read, file->ReadAt(offset, bytes, to));
  if (read == bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": became shorter while it was read: ", read, " of ", bytes, " bytes at offset ",
      offset, " are there; let nobody write to it and begin again"));
}

// N, which is at most `limits` and fits the file.
absl::StatusOr<uint64_t> ReadHeaderBytes(File* file, const std::string& path, uint64_t file_bytes,
                                         const SafetensorsLimits& limits) {
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", file_bytes,
                                                   " bytes; a safetensors file begins with ",
                                                   kLengthBytes, " bytes of length"));
  }
  std::array<unsigned char, kLengthBytes> length;
  BALLAST_RETURN_IF_ERROR(ReadAll(file, path, 0, length.size(), length.data()));
  uint64_t bytes = 0;
  for (size_t i = 0; i < length.size(); ++i) bytes |= uint64_t{length[i]} << (8 * i);
  if (bytes > limits.header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a header of ", bytes, " bytes is above the limit of ",
                     limits.header_bytes, "; this is no safetensors file"));
  }
  if (bytes > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is cut off: its header ends at byte ", kLengthBytes + bytes,
                     ", the file has ", file_bytes, " bytes; fetch or write the file again"));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    FileSystem* fs, const std::string& path, const SafetensorsLimits& limits) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs->Open(path, {.direct = true}));
  BALLAST_ASSIGN_OR_RETURN(const uint64_t file_bytes, file->Size());
  BALLAST_ASSIGN_OR_RETURN(const uint64_t json_bytes,
                           ReadHeaderBytes(file.get(), path, file_bytes, limits));
  std::string json(json_bytes, '\0');
  BALLAST_RETURN_IF_ERROR(ReadAll(file.get(), path, kLengthBytes, json_bytes, json.data()));
  absl::StatusOr<SafetensorsHeader> header =
      ParseSafetensorsHeader(json, file_bytes - kLengthBytes - json_bytes, limits);
  if (!header.ok()) return InFile(path, header.status());
  return std::unique_ptr<SafetensorsReader>(
      new SafetensorsReader(path, std::move(file), *std::move(header)));
}

SafetensorsReader::SafetensorsReader(std::string path, std::unique_ptr<File> file,
                                     SafetensorsHeader header)
    : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {}

absl::Status SafetensorsReader::ReadAt(size_t tensor, uint64_t offset, size_t bytes,
                                       void* to) const {
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsRange(path_, header_, tensor, offset, bytes));
  return ReadAll(file_.get(), path_, header_.data_offset + header_.tensors[tensor].begin + offset,
                 bytes, to);
}

absl::StatusOr<const char*> SafetensorsReader::ReadPages(size_t tensor, uint64_t offset,
                                                         size_t bytes, char* pages) const {
  BALLAST_RETURN_IF_ERROR(internal::CheckSafetensorsRange(path_, header_, tensor, offset, bytes));
  const uint64_t begin = header_.data_offset + header_.tensors[tensor].begin + offset;
  const uint64_t first = begin / kPageBytes * kPageBytes;
  const uint64_t end = (begin + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  BALLAST_ASSIGN_OR_RETURN(const size_t read, file_->ReadAt(first, end - first, pages));
  if (first + read >= begin + bytes) return pages + (begin - first);
  return absl::FailedPreconditionError(absl::StrCat(
      path_, ": became shorter while it was read: ", first + read, " bytes are there, ",
      begin + bytes, " are needed; let nobody write to it and begin again"));
}

namespace internal {

absl::Status CheckSafetensorsRange(const std::string& path, const SafetensorsHeader& header,
                                   size_t tensor, uint64_t offset, uint64_t bytes) {
  if (tensor >= header.tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor number ", tensor, " of a file with ", header.tensors.size()));
  }
  const TensorEntry& entry = header.tensors[tensor];
  if (offset <= entry.bytes() && bytes <= entry.bytes() - offset) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", bytes, " bytes at byte ", offset,
                                                 " of tensor ", Quoted(entry.name), ", which has ",
                                                 entry.bytes(), " bytes"));
}

}  // namespace internal
}  // namespace ballast
