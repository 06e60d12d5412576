#include "server/durability/images/image_disk.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/faults/failpoint.h"
#include "common/text/names.h"
#include "common/text/units.h"

namespace ballast::server {
namespace {

// Memory for one header, as direct I/O wants it.
struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using HeaderMemory = std::unique_ptr<char, FreeMemory>;

absl::StatusOr<HeaderMemory> MakeHeaderMemory(uint64_t bytes) {
  HeaderMemory memory(static_cast<char*>(std::aligned_alloc(kPageBytes, bytes)));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for an image header of ", bytes, " bytes"));
  }
  return memory;
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The first chunk of `data` that does not match `header`; none when all match.
std::optional<uint32_t> FirstBadChunk(const ImageHeader& header, const char* data) {
  const uint64_t payload_bytes = ImageFile::PayloadBytes(header.shape);
  for (uint32_t i = 0; i < header.chunk_crcs.size(); ++i) {
    const uint64_t at = i * kImageChunkBytes;
    const uint64_t bytes = std::min(kImageChunkBytes, payload_bytes - at);
    if (ImageChunkCrc(header, i, data + at, bytes) != header.chunk_crcs[i]) return i;
  }
  return std::nullopt;
}

}  // namespace

// Making and opening.

absl::Status ImageDisk::CheckRoom(uint64_t bytes) const {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs_->FreeBytes(DirectoryOf(path_)));
  if (bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the images in ", path_, " need ", BytesText(bytes), ", free are ", free_bytes,
                   "; free space, or give the job a directory with more of it"));
}

absl::Status ImageDisk::Create(uint64_t bytes) {
  BALLAST_RETURN_IF_ERROR(CheckRoom(bytes));
  BALLAST_ASSIGN_OR_RETURN(
      file_, fs_->Open(path_, {.mode = OpenMode::kCreateNew, .direct = options_.direct}));
  // Reserved space reads as zeros: all images are empty.
  absl::Status status = file_->Allocate(bytes);
  if (status.ok()) {
    EncodeImageFilePage(options_, scratch_.data());
    const ConstBytes page{scratch_.data(), kPageBytes};
    status = file_->WriteAt(0, {page});
  }
  if (status.ok()) status = file_->Sync();
  if (status.ok()) status = fs_->SyncDirectory(DirectoryOf(path_));
  if (!status.ok()) {
    file_.reset();
    fs_->Remove(path_).IgnoreError();  // The first error is the one to report.
  }
  return status;
}

absl::Status ImageDisk::Open(uint64_t bytes, size_t extent_count) {
  const OpenMode mode = options_.read_only ? OpenMode::kRead : OpenMode::kWrite;
  BALLAST_ASSIGN_OR_RETURN(file_, fs_->Open(path_, {.mode = mode, .direct = options_.direct}));
  BALLAST_RETURN_IF_ERROR(CheckFileHeader());
  BALLAST_ASSIGN_OR_RETURN(const uint64_t there, file_->Size());
  if (there >= bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path_, " has ", there, " bytes, the images of ",
                                                    extent_count, " extents need ", bytes,
                                                    "; open it with the extents it was made for"));
}

absl::Status ImageDisk::CheckFileHeader() const {
  BALLAST_ASSIGN_OR_RETURN(const size_t count, file_->ReadAt(0, kPageBytes, scratch_.data()));
  if (count < kPageBytes) {
    return absl::DataLossError(absl::StrCat(
        path_, " has ", count, " bytes and no whole header; it ", "was cut off or never finished"));
  }
  const absl::StatusOr<ImageOptions> made = DecodeImageFilePage(scratch_.data());
  if (!made.ok()) {
    return absl::Status(made.status().code(), absl::StrCat(path_, ": ", made.status().message()));
  }
  if (made->job != options_.job || made->server != options_.server) {
    return absl::DataLossError(absl::StrCat(path_, " was made for job ", JobIdText(made->job),
                                            ", server ", made->server, ", not for job ",
                                            JobIdText(options_.job), ", server ", options_.server,
                                            "; put the right file there"));
  }
  const auto differs = [this](const char* what, const auto& there, const auto& wanted) {
    if (there == wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " was made for ", what, " ", there, ", not ", wanted, "; open it as it was made"));
  };
  BALLAST_RETURN_IF_ERROR(differs("optimizer", made->optimizer, options_.optimizer));
  BALLAST_RETURN_IF_ERROR(differs("kernel formula", made->formula_id, options_.formula_id));
  BALLAST_RETURN_IF_ERROR(differs("images of an extent:", made->places, options_.places));
  return differs("tiles of elements:", made->tile_elements, options_.tile_elements);
}

// Images.

absl::StatusOr<std::optional<ImageHeader>> ImageDisk::ReadHeader(const ImageShape& shape,
                                                                 uint64_t offset,
                                                                 const Arena& scratch) const {
  const uint64_t bytes = ImageHeaderBytes(shape);
  BALLAST_ASSIGN_OR_RETURN(const size_t count, file_->ReadAt(offset, bytes, scratch.data()));
  if (count < bytes) return std::nullopt;
  absl::StatusOr<ImageHeader> header = DecodeImageHeader(shape, scratch.data());
  if (absl::IsFailedPrecondition(header.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " at byte ", offset, ": ", header.status().message()));
  }
  // Torn, damaged, or written to a wrong place: an empty place.
  if (!header.ok() || header->offset != offset) return std::nullopt;
  BALLAST_RETURN_IF_ERROR(CheckMatches(shape, *header));
  return *std::move(header);
}

absl::Status ImageDisk::CheckMatches(const ImageShape& shape, const ImageHeader& header) const {
  const ImageShape& there = header.shape;
  if (header.job == options_.job && header.server == options_.server && there == shape &&
      header.optimizer == options_.optimizer && header.formula_id == options_.formula_id &&
      header.tile_elements == options_.tile_elements) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path_, " at byte ", header.offset, " holds extent ", there.extent, " of job ",
      JobIdText(header.job), ", server ", header.server, ", with ", there.array_count,
      " arrays of ", there.elements, " elements, not extent ", shape.extent, " of job ",
      JobIdText(options_.job), ", server ", options_.server, ", with ", shape.array_count, " of ",
      shape.elements, "; open it with the extents it was made for"));
}

absl::Status ImageDisk::Write(ImageHeader* header, const char* data,
                              absl::Span<const uint32_t> chunk_crcs) {
  const uint64_t payload_bytes = ImageFile::PayloadBytes(header->shape);
  for (uint32_t i = 0; i < ImageChunks(header->shape); ++i) {
    const uint64_t at = i * kImageChunkBytes;
    const uint64_t bytes = std::min(kImageChunkBytes, payload_bytes - at);
    header->chunk_crcs.push_back(chunk_crcs.empty()
                                     ? ImageChunkCrc(*header, i, data + at, bytes)
                                     : ImageChunkCrc(*header, i, chunk_crcs[i], bytes));
  }
  const uint64_t header_bytes = ImageHeaderBytes(header->shape);
  BALLAST_ASSIGN_OR_RETURN(const HeaderMemory page, MakeHeaderMemory(header_bytes));
  EncodeImageHeader(*header, page.get());
  return WriteImage(header->offset, {page.get(), header_bytes},
                    {data, ImageFile::BufferBytes(header->shape)});
}

absl::Status ImageDisk::WriteAgain(const ImageHeader& header, const char* data) {
  EncodeImageHeader(header, scratch_.data());
  return WriteImage(header.offset, {scratch_.data(), ImageHeaderBytes(header.shape)},
                    {data, ImageFile::BufferBytes(header.shape)});
}

absl::Status ImageDisk::WriteImage(uint64_t offset, ConstBytes header, ConstBytes payload) {
  BALLAST_FAILPOINT_RETURN("images.before_write");
  BALLAST_RETURN_IF_ERROR(file_->WriteAt(offset + header.bytes, {payload}));
  BALLAST_RETURN_IF_ERROR(file_->WriteAt(offset, {header}));
  BALLAST_FAILPOINT_RETURN("images.after_write");
  return absl::OkStatus();
}

absl::Status ImageDisk::Flush() {
  BALLAST_FAILPOINT_RETURN("images.before_sync");
  if (options_.flush) BALLAST_RETURN_IF_ERROR(file_->Sync());
  BALLAST_FAILPOINT_RETURN("images.after_sync");
  return absl::OkStatus();
}

absl::Status ImageDisk::Read(const ImageHeader& header, void* to) const {
  const uint64_t offset = header.offset + ImageHeaderBytes(header.shape);
  const uint64_t bytes = ImageFile::BufferBytes(header.shape);
  const absl::StatusOr<size_t> count = file_->ReadAt(offset, bytes, to);
  std::string damage;
  if (!count.ok()) {
    if (!absl::IsDataLoss(count.status())) return count.status();
    damage = std::string(count.status().message());
  } else if (*count < bytes) {
    damage = absl::StrCat("the file ends at byte ", offset + *count);
  } else if (const auto bad = FirstBadChunk(header, static_cast<const char*>(to)); bad) {
    damage = absl::StrCat("the checksum of the bytes from ", offset + *bad * kImageChunkBytes,
                          " on does not match");
  } else {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("version ", header.version, " of extent ", header.shape.extent, " in ", path_,
                   " is damaged: ", damage, "; use the extent's other image and the log"));
}

}  // namespace ballast::server
