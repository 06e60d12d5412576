#include "server/durability/images/image_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/arena.h"
#include "server/durability/images/image_book.h"
#include "server/durability/images/image_disk.h"
#include "server/durability/images/image_format.h"
#include "server/durability/records/bytes.h"
#include "server/durability/records/read_lanes.h"

namespace ballast::server {
namespace {

constexpr uint32_t kArraysMax = 64;  // far above any optimizer; keeps the arithmetic in range

// Images of one or two places: ImageBook knows which count, ImageDisk has their bytes.
class TwoImageFile : public ImageFile {
 public:
  TwoImageFile(FileSystem* fs, const std::string& path, const ImageOptions& options, Arena scratch,
               const std::vector<ImageShape>& shapes)
      : disk_(fs, path, options, std::move(scratch)), book_(path, options, shapes) {}

  absl::Status CreateAll() { return disk_.Create(book_.file_bytes()); }
  absl::Status OpenAll();

  std::vector<uint64_t> Versions(uint32_t extent) const override { return book_.Versions(extent); }
  uint64_t Flushed(uint32_t extent) const override { return book_.Flushed(extent); }
  bool NeedsSync(uint32_t extent) const override { return book_.NeedsSync(extent); }
  void Forget(uint32_t extent) override { book_.Forget(extent); }
  absl::StatusOr<uint64_t> Hold(uint32_t extent) override { return book_.Hold(extent); }
  void LetGo(uint32_t extent) override { book_.LetGo(extent); }
  std::optional<uint64_t> Held(uint32_t extent) const override { return book_.Held(extent); }
  using ImageFile::Write;
  absl::Status Write(uint32_t extent, uint64_t version, const void* data,
                     absl::Span<const uint32_t> chunk_crcs) override;
  absl::Status Sync() override;
  absl::Status Read(uint32_t extent, uint64_t version, void* to) override;

 private:
  absl::Status ReadHeaders(const std::vector<ImageBook::Places>& all);
  // Of all images that may not have been flushed.
  absl::Status WriteUnprovenAgain();
  absl::Status WriteAgain(const ImageHeader& header);

  ImageDisk disk_;
  ImageBook book_;
};

// INVALID_ARGUMENT for shapes that one file cannot have.
absl::Status CheckShapes(const std::vector<ImageShape>& shapes, const std::string& path,
                         uint64_t header_bytes_max) {
  std::set<uint32_t> seen;
  for (const ImageShape& shape : shapes) {
    if (shape.array_count > kArraysMax || ImageHeaderBytes(shape) > header_bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "extent ", shape.extent, " has ", shape.array_count, " state arrays of ", shape.elements,
          " elements; an image holds at most ", kArraysMax, " arrays and ",
          header_bytes_max / sizeof(uint32_t) * kImageChunkBytes, " bytes; use smaller extents"));
    }
    if (!seen.insert(shape.extent).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("extent ", shape.extent, " is twice in the images of ", path));
    }
  }
  return absl::OkStatus();
}

absl::Status TwoImageFile::OpenAll() {
  const std::vector<ImageBook::Places> all = book_.AllPlaces();
  BALLAST_RETURN_IF_ERROR(disk_.Open(book_.file_bytes(), all.size()));
  BALLAST_RETURN_IF_ERROR(ReadHeaders(all));
  if (disk_.options().read_only) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(WriteUnprovenAgain());
  return Sync();
}

absl::Status TwoImageFile::ReadHeaders(const std::vector<ImageBook::Places>& all) {
  BALLAST_ASSIGN_OR_RETURN(
      ReadLanes lanes, ReadLanes::Create(disk_.options().open_threads, disk_.header_bytes_max()));
  return lanes.ForEach(all.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
    for (const uint64_t offset : all[i].offsets) {
      BALLAST_ASSIGN_OR_RETURN(std::optional<ImageHeader> header,
                               disk_.ReadHeader(all[i].shape, offset, scratch));
      if (header.has_value()) book_.Found(*std::move(header));
    }
    return absl::OkStatus();
  });
}

absl::Status TwoImageFile::WriteUnprovenAgain() {
  for (const ImageHeader& header : book_.TakeUnproven()) {
    BALLAST_RETURN_IF_ERROR(WriteAgain(header));
  }
  return absl::OkStatus();
}

absl::Status TwoImageFile::WriteAgain(const ImageHeader& header) {
  BALLAST_ASSIGN_OR_RETURN(const Arena payload,
                           Arena::Create(std::max(BufferBytes(header.shape), kPageBytes)));
  const absl::Status read = disk_.Read(header, payload.data());
  // A torn or damaged image stays as it is: its next reader gets the error.
  if (absl::IsDataLoss(read)) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(read);
  const absl::Status written = disk_.WriteAgain(header, payload.data());
  return written.ok() ? written : book_.Fail(written);
}

absl::Status TwoImageFile::Write(uint32_t extent, uint64_t version, const void* data,
                                 absl::Span<const uint32_t> chunk_crcs) {
  BALLAST_ASSIGN_OR_RETURN(const ImageShape shape, book_.ShapeOf(extent));
  if (!chunk_crcs.empty() && chunk_crcs.size() != ImageChunks(shape)) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent, " has ", ImageChunks(shape),
                                                   " chunks, but ", chunk_crcs.size(),
                                                   " checksums came with it"));
  }
  BALLAST_ASSIGN_OR_RETURN(ImageHeader header, book_.BeginWrite(extent, version));
  const absl::Status status = disk_.Write(&header, static_cast<const char*>(data), chunk_crcs);
  return book_.EndWrite(std::move(header), status);
}

absl::Status TwoImageFile::Sync() {
  BALLAST_ASSIGN_OR_RETURN(const ImageBook::Covered covered, book_.BeginSync());
  return book_.EndSync(covered, disk_.Flush());
}

absl::Status TwoImageFile::Read(uint32_t extent, uint64_t version, void* to) {
  BALLAST_ASSIGN_OR_RETURN(const ImageHeader header, book_.HeaderOf(extent, version));
  const absl::Status status = disk_.Read(header, to);
  if (absl::IsDataLoss(status)) book_.Damaged(header);
  return status;
}

absl::StatusOr<std::unique_ptr<TwoImageFile>> Make(FileSystem* fs, const std::string& path,
                                                   const ImageOptions& options,
                                                   const std::vector<ImageShape>& shapes) {
  BALLAST_ASSIGN_OR_RETURN(Arena scratch, Arena::Create(Arena::kAlignmentBytes));
  BALLAST_RETURN_IF_ERROR(CheckShapes(shapes, path, scratch.bytes()));
  return std::make_unique<TwoImageFile>(fs, path, options, std::move(scratch), shapes);
}

}  // namespace

uint64_t ImageFile::PayloadBytes(const ImageShape& shape) {
  return uint64_t{shape.elements} * shape.array_count * sizeof(float);
}

uint64_t ImageFile::BufferBytes(const ImageShape& shape) {
  return PaddedBytes(PayloadBytes(shape));
}

uint64_t ImageFile::DiskBytes(const std::vector<ImageShape>& shapes, uint32_t places) {
  uint64_t bytes = kPageBytes;
  for (const ImageShape& shape : shapes) bytes += places * ImageBytes(shape);
  return bytes;
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageFile::Create(
    FileSystem* fs, const std::string& path, const ImageOptions& options,
    const std::vector<ImageShape>& shapes) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<TwoImageFile> file, Make(fs, path, options, shapes));
  BALLAST_RETURN_IF_ERROR(file->CreateAll());
  return file;
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageFile::Open(FileSystem* fs, const std::string& path,
                                                           const ImageOptions& options,
                                                           const std::vector<ImageShape>& shapes) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<TwoImageFile> file, Make(fs, path, options, shapes));
  BALLAST_RETURN_IF_ERROR(file->OpenAll());
  return file;
}

}  // namespace ballast::server
