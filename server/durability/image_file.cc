#include "server/durability/image_file.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/mutant.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/base/sync.h"
#include "common/base/units.h"
#include "common/io/arena.h"
#include "server/durability/image_format.h"
#include "server/durability/log_format.h"
#include "server/durability/read_lanes.h"

namespace ballast::server {
namespace {

constexpr uint32_t kArraysMax = 64;  // far above any optimizer; keeps the arithmetic in range

uint64_t ImageBytes(const ImageShape& shape) {
  return ImageHeaderBytes(shape) + ImageFile::BufferBytes(shape);
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status CheckRoom(FileSystem* fs, const std::string& path, uint64_t bytes) {
  BALLAST_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs->FreeBytes(DirectoryOf(path)));
  if (bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the images in ", path, " need ", BytesText(bytes), ", free are ", free_bytes,
                   "; free space, or give the job a directory with more of it"));
}

class TwoImageFile : public ImageFile {
 public:
  TwoImageFile(FileSystem* fs, std::string path, const ImageOptions& options, Arena scratch)
      : fs_(fs), path_(std::move(path)), options_(options), scratch_(std::move(scratch)) {}

  absl::Status CreateWith(const std::vector<ImageShape>& shapes);
  absl::Status OpenWith(const std::vector<ImageShape>& shapes);

  std::vector<uint64_t> Versions(uint32_t extent) const override;
  uint64_t Flushed(uint32_t extent) const override;
  bool NeedsSync(uint32_t extent) const override;
  void Forget(uint32_t extent) override;
  absl::StatusOr<uint64_t> Hold(uint32_t extent) override;
  void LetGo(uint32_t extent) override;
  std::optional<uint64_t> Held(uint32_t extent) const override;
  using ImageFile::Write;
  absl::Status Write(uint32_t extent, uint64_t version, const void* data,
                     absl::Span<const uint32_t> chunk_crcs) override;
  absl::Status Sync() override;
  absl::Status Read(uint32_t extent, uint64_t version, void* to) override;

 private:
  struct Image {
    uint64_t offset = 0;
    std::optional<ImageHeader> header;  // none: empty, torn, damaged or being written
    bool flushed = false;
  };
  struct Extent {
    ImageShape shape;
    std::vector<Image> images;  // one or two
    bool writing = false;
    bool unflushed = false;  // the newer image is not flushed yet: the other one must stay
    uint32_t holds = 0;
    Image* held = nullptr;  // while holds > 0
  };

  // INVALID_ARGUMENT for shapes that cannot come behind those there are.
  absl::Status CheckShapes(const std::vector<ImageShape>& shapes) const;
  // Gives checked shapes their places.
  void Place(const std::vector<ImageShape>& shapes);
  absl::Status CheckFileHeader();
  absl::Status ReadImageHeaders();
  absl::Status ReadImageHeader(const ImageShape& shape, const Arena& scratch, Image* image) const;
  // Of all images that may not have been flushed.
  absl::Status WriteUnprovenAgain();
  absl::Status WriteAgain(Image* image, const Arena& payload);
  ImageHeader HeaderOf(const ImageShape& shape, uint64_t offset, uint64_t version) const;
  // The image to overwrite: an empty one, else the older; not the one that is held.
  static Image* Overwritable(Extent* extent);
  static std::vector<uint64_t> VersionsOf(const Extent& extent);
  // Index of its image.
  static std::optional<size_t> NewestFlushed(const Extent& extent);
  static uint64_t NewestSerial(const Extent& extent);
  // Begins a Write: its image, empty from then on, and its header without checksums.
  absl::StatusOr<std::pair<Image*, ImageHeader>> BeginWrite(Extent* target, uint64_t version);
  absl::Status WritePayload(ImageHeader* header, const char* data,
                            absl::Span<const uint32_t> chunk_crcs);
  absl::StatusOr<ImageHeader> HeaderOfVersion(const Extent& source, uint64_t version) const;
  absl::StatusOr<Extent*> Find(uint32_t extent);
  // The first chunk of `data` that is not what `header` says; none when all are.
  static std::optional<uint32_t> FirstBadChunk(const ImageHeader& header, const char* data);
  // Payload, then header; one flush makes both count.
  absl::Status WriteImage(uint64_t offset, ConstBytes header, ConstBytes payload);
  absl::Status Flush();
  absl::Status Fail(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FileSystem* const fs_;
  const std::string path_;
  const ImageOptions options_;
  const Arena scratch_;  // for headers

  std::unique_ptr<File> file_;
  uint64_t end_ = kPageBytes;  // of the images

  // Guards what follows and all of extents_, whose entries stay put; never held over I/O.
  mutable Mutex mu_;
  std::map<uint32_t, Extent> extents_;
  uint64_t last_serial_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t flushed_serial_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<uint64_t> writing_serials_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

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

absl::Status TwoImageFile::Fail(const absl::Status& cause) {
  const auto code = absl::IsResourceExhausted(cause) ? absl::StatusCode::kInternal : cause.code();
  failure_ = absl::Status(code, absl::StrCat("the images take nothing more until they are opened ",
                                             "again: ", cause.message()));
  return failure_;
}

absl::Status TwoImageFile::CheckShapes(const std::vector<ImageShape>& shapes) const {
  std::set<uint32_t> seen;
  for (const ImageShape& shape : shapes) {
    if (shape.array_count > kArraysMax || ImageHeaderBytes(shape) > scratch_.bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "extent ", shape.extent, " has ", shape.array_count, " state arrays of ", shape.elements,
          " elements; an image holds at most ", kArraysMax, " arrays and ",
          scratch_.bytes() / sizeof(uint32_t) * kImageChunkBytes, " bytes; use smaller extents"));
    }
    if (!seen.insert(shape.extent).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("extent ", shape.extent, " is twice in the images of ", path_));
    }
  }
  return absl::OkStatus();
}

void TwoImageFile::Place(const std::vector<ImageShape>& shapes) {
  for (const ImageShape& shape : shapes) {
    Extent& extent = extents_[shape.extent];
    extent.shape = shape;
    extent.images.resize(options_.places);
    for (Image& image : extent.images) {
      image.offset = end_;
      end_ += ImageBytes(shape);
    }
  }
}

// Making and opening.

absl::Status TwoImageFile::CreateWith(const std::vector<ImageShape>& shapes) {
  BALLAST_RETURN_IF_ERROR(CheckShapes(shapes));
  Place(shapes);
  BALLAST_RETURN_IF_ERROR(CheckRoom(fs_, path_, end_));
  BALLAST_ASSIGN_OR_RETURN(
      file_, fs_->Open(path_, {.mode = OpenMode::kCreateNew, .direct = options_.direct}));
  // Reserved space reads as zeros: all images are empty.
  absl::Status status = file_->Allocate(end_);
  if (status.ok()) {
    EncodeImageFilePage(options_, scratch_.data());
    const ConstBytes page{scratch_.data(), kPageBytes};
    status = file_->WriteAt(0, {page});
  }
  if (status.ok()) status = file_->Sync();
  if (status.ok()) status = fs_->SyncDirectory(DirectoryOf(path_));
  if (!status.ok()) {
    file_.reset();
    fs_->Remove(path_).IgnoreError();  // The first error is the one to tell.
  }
  return status;
}

absl::Status TwoImageFile::OpenWith(const std::vector<ImageShape>& shapes) {
  BALLAST_RETURN_IF_ERROR(CheckShapes(shapes));
  Place(shapes);
  const OpenMode mode = options_.read_only ? OpenMode::kRead : OpenMode::kWrite;
  BALLAST_ASSIGN_OR_RETURN(file_, fs_->Open(path_, {.mode = mode, .direct = options_.direct}));
  BALLAST_RETURN_IF_ERROR(CheckFileHeader());
  BALLAST_ASSIGN_OR_RETURN(const uint64_t bytes, file_->Size());
  if (bytes < end_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " has ", bytes, " bytes, the images of ", extents_.size(),
                     " extents need ", end_, "; open it with the extents it was made for"));
  }
  BALLAST_RETURN_IF_ERROR(ReadImageHeaders());
  if (options_.read_only) return absl::OkStatus();
  BALLAST_RETURN_IF_ERROR(WriteUnprovenAgain());
  return Sync();
}

absl::Status TwoImageFile::ReadImageHeaders() {
  std::vector<Extent*> extents;
  for (auto& [number, extent] : extents_) extents.push_back(&extent);
  BALLAST_ASSIGN_OR_RETURN(ReadLanes lanes,
                           ReadLanes::Create(options_.open_threads, scratch_.bytes()));
  return lanes.ForEach(extents.size(), [&](size_t i, const Arena& scratch) -> absl::Status {
    for (Image& image : extents[i]->images) {
      BALLAST_RETURN_IF_ERROR(ReadImageHeader(extents[i]->shape, scratch, &image));
    }
    return absl::OkStatus();
  });
}

// After a failed flush the kernel may give back bytes that the disk does not have, and no later
// flush saves them. An image counts as flushed when a later write says so; that is all but the
// newest of them, or what one flush was to cover.
absl::Status TwoImageFile::WriteUnprovenAgain() {
  uint64_t flushed = 0;
  {
    MutexLock lock(&mu_);
    for (const auto& [number, extent] : extents_) {
      for (const Image& image : extent.images) {
        if (!image.header.has_value()) continue;
        last_serial_ = std::max(last_serial_, image.header->serial);
        flushed_serial_ = std::max(flushed_serial_, image.header->flushed_serial);
      }
    }
    flushed = flushed_serial_;
  }
  for (auto& [number, extent] : extents_) {
    for (Image& image : extent.images) {
      if (!image.header.has_value()) continue;
      image.flushed = true;  // By the Sync that follows, at the latest.
      if (image.header->serial <= flushed) continue;
      BALLAST_ASSIGN_OR_RETURN(const Arena payload,
                               Arena::Create(std::max(BufferBytes(extent.shape), kPageBytes)));
      BALLAST_RETURN_IF_ERROR(WriteAgain(&image, payload));
    }
  }
  return absl::OkStatus();
}

absl::Status TwoImageFile::WriteAgain(Image* image, const Arena& payload) {
  const ImageHeader header = *image->header;
  const absl::Status read = Read(header.shape.extent, header.version, payload.data());
  if (absl::IsDataLoss(read)) {
    image->header = header;  // Torn or damaged: whoever reads it is told.
    return absl::OkStatus();
  }
  BALLAST_RETURN_IF_ERROR(read);
  EncodeImageHeader(header, scratch_.data());
  const absl::Status status =
      WriteImage(image->offset, {scratch_.data(), ImageHeaderBytes(header.shape)},
                 {payload.data(), BufferBytes(header.shape)});
  if (status.ok()) return status;
  MutexLock lock(&mu_);
  return Fail(status);
}

absl::Status TwoImageFile::CheckFileHeader() {
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

absl::Status TwoImageFile::ReadImageHeader(const ImageShape& shape, const Arena& scratch,
                                           Image* image) const {
  const uint64_t bytes = ImageHeaderBytes(shape);
  BALLAST_ASSIGN_OR_RETURN(const size_t count, file_->ReadAt(image->offset, bytes, scratch.data()));
  if (count < bytes) return absl::OkStatus();
  absl::StatusOr<ImageHeader> header = DecodeImageHeader(shape, scratch.data());
  if (absl::IsFailedPrecondition(header.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " at byte ", image->offset, ": ", header.status().message()));
  }
  // Torn, damaged, or written to a wrong place: an empty place.
  if (!header.ok() || header->offset != image->offset) return absl::OkStatus();
  const ImageShape& there = header->shape;
  if (header->job != options_.job || header->server != options_.server ||
      there.extent != shape.extent || there.elements != shape.elements ||
      there.array_count != shape.array_count || header->optimizer != options_.optimizer ||
      header->formula_id != options_.formula_id ||
      header->tile_elements != options_.tile_elements) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " at byte ", image->offset, " holds extent ", there.extent, " of job ",
        JobIdText(header->job), ", server ", header->server, ", with ", there.array_count,
        " arrays of ", there.elements, " elements, not extent ", shape.extent, " of job ",
        JobIdText(options_.job), ", server ", options_.server, ", with ", shape.array_count, " of ",
        shape.elements, "; open it with the extents it was made for"));
  }
  image->header = *std::move(header);
  return absl::OkStatus();
}

// Images.

absl::StatusOr<TwoImageFile::Extent*> TwoImageFile::Find(uint32_t extent) {
  const auto found = extents_.find(extent);
  if (found != extents_.end()) return &found->second;
  return absl::InvalidArgumentError(absl::StrCat("extent ", extent, " has no images in ", path_));
}

std::vector<uint64_t> TwoImageFile::VersionsOf(const Extent& extent) {
  std::vector<uint64_t> versions;
  for (const Image& image : extent.images) {
    if (image.header.has_value()) versions.push_back(image.header->version);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

std::vector<uint64_t> TwoImageFile::Versions(uint32_t extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return {};
  MutexLock lock(&mu_);
  return VersionsOf(found->second);
}

uint64_t TwoImageFile::Flushed(uint32_t extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return 0;
  MutexLock lock(&mu_);
  // A held one may be the only whole one while the other is written.
  const Image* const held = found->second.held;
  if (held != nullptr && held->header.has_value()) return held->header->version;
  const std::optional<size_t> newest = NewestFlushed(found->second);
  return newest ? found->second.images[*newest].header->version : 0;
}

bool TwoImageFile::NeedsSync(uint32_t extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return false;
  MutexLock lock(&mu_);
  return found->second.unflushed;
}

std::optional<size_t> TwoImageFile::NewestFlushed(const Extent& extent) {
  std::optional<size_t> newest;
  for (size_t i = 0; i < extent.images.size(); ++i) {
    const Image& image = extent.images[i];
    if (!image.header.has_value() || !image.flushed) continue;
    if (!newest || image.header->version > extent.images[*newest].header->version) newest = i;
  }
  return newest;
}

absl::StatusOr<uint64_t> TwoImageFile::Hold(uint32_t extent) {
  BALLAST_ASSIGN_OR_RETURN(Extent* const target, Find(extent));
  MutexLock lock(&mu_);
  if (target->holds == 0) {
    const std::optional<size_t> newest = NewestFlushed(*target);
    if (!newest) {
      return absl::NotFoundError(
          absl::StrCat("no image of extent ", extent, " in ", path_, " is flushed"));
    }
    target->held = &target->images[*newest];
  } else if (!target->held->header.has_value()) {  // It was read, and is damaged.
    return absl::NotFoundError(
        absl::StrCat("the image of extent ", extent, " in ", path_, " that is held is damaged"));
  }
  ++target->holds;
  return target->held->header->version;
}

void TwoImageFile::LetGo(uint32_t extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return;
  MutexLock lock(&mu_);
  Extent& target = found->second;
  if (target.holds > 0 && --target.holds == 0) target.held = nullptr;
}

std::optional<uint64_t> TwoImageFile::Held(uint32_t extent) const {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return std::nullopt;
  MutexLock lock(&mu_);
  const Image* const held = found->second.held;
  if (held == nullptr || !held->header.has_value()) return std::nullopt;
  return held->header->version;
}

TwoImageFile::Image* TwoImageFile::Overwritable(Extent* extent) {
  if (extent->images.size() == 1) return &extent->images[0];
  Image& first = extent->images[0];
  Image& second = extent->images[1];
  if (extent->held == &first) return &second;
  if (extent->held == &second) return &first;
  if (!first.header.has_value()) return &first;
  if (!second.header.has_value()) return &second;
  const bool first_is_older = first.header->version < second.header->version;
  return first_is_older != BALLAST_MUTANT(kImageInPlace) ? &first : &second;
}

ImageHeader TwoImageFile::HeaderOf(const ImageShape& shape, uint64_t offset,
                                   uint64_t version) const {
  return {.job = options_.job,
          .server = options_.server,
          .offset = offset,
          .version = version,
          .shape = shape,
          .optimizer = options_.optimizer,
          .formula_id = options_.formula_id,
          .tile_elements = options_.tile_elements};
}

void TwoImageFile::Forget(uint32_t extent) {
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return;
  MutexLock lock(&mu_);
  Extent& target = found->second;
  for (Image& image : target.images) {
    image.header.reset();
    image.flushed = false;
  }
  target.holds = 0;
  target.held = nullptr;
}

absl::StatusOr<std::pair<TwoImageFile::Image*, ImageHeader>> TwoImageFile::BeginWrite(
    Extent* target, uint64_t version) {
  const uint32_t extent = target->shape.extent;
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(failure_);
  const std::vector<uint64_t> versions = VersionsOf(*target);
  if (target->unflushed) {
    return absl::FailedPreconditionError(
        absl::StrCat("version ", versions.empty() ? 0 : versions.front(), " of extent ", extent,
                     " is not flushed; call Sync before writing version ", version));
  }
  if (!versions.empty() && version <= versions.front()) {
    return absl::InternalError(absl::StrCat("extent ", extent, " has version ", versions.front(),
                                            " in its images; version ", version, " is not newer"));
  }
  Image* const image = Overwritable(target);
  ImageHeader header = HeaderOf(target->shape, image->offset, version);
  header.serial = ++last_serial_;
  header.flushed_serial = flushed_serial_;
  writing_serials_.insert(header.serial);
  image->header.reset();
  image->flushed = false;
  target->unflushed = true;
  target->writing = true;
  return std::pair(image, std::move(header));
}

absl::Status TwoImageFile::Write(uint32_t extent, uint64_t version, const void* data,
                                 absl::Span<const uint32_t> chunk_crcs) {
  BALLAST_ASSIGN_OR_RETURN(Extent* const target, Find(extent));
  if (!chunk_crcs.empty() && chunk_crcs.size() != ImageChunks(target->shape)) {
    return absl::InvalidArgumentError(absl::StrCat("extent ", extent, " has ",
                                                   ImageChunks(target->shape), " chunks, but ",
                                                   chunk_crcs.size(), " checksums came with it"));
  }
  BALLAST_ASSIGN_OR_RETURN(auto begun, BeginWrite(target, version));
  auto& [image, header] = begun;
  const absl::Status status = WritePayload(&header, static_cast<const char*>(data), chunk_crcs);
  MutexLock lock(&mu_);
  writing_serials_.erase(header.serial);
  target->writing = false;
  if (!status.ok()) return Fail(status);
  image->header = std::move(header);
  return absl::OkStatus();
}

absl::Status TwoImageFile::WritePayload(ImageHeader* header, const char* data,
                                        absl::Span<const uint32_t> chunk_crcs) {
  const uint64_t payload_bytes = PayloadBytes(header->shape);
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
  return WriteImage(header->offset, {page.get(), header_bytes}, {data, BufferBytes(header->shape)});
}

absl::Status TwoImageFile::WriteImage(uint64_t offset, ConstBytes header, ConstBytes payload) {
  BALLAST_FAILPOINT_RETURN("slots.before_write");
  BALLAST_RETURN_IF_ERROR(file_->WriteAt(offset + header.bytes, {payload}));
  BALLAST_RETURN_IF_ERROR(file_->WriteAt(offset, {header}));
  BALLAST_FAILPOINT_RETURN("slots.after_write");
  return absl::OkStatus();
}

uint64_t TwoImageFile::NewestSerial(const Extent& extent) {
  uint64_t newest = 0;
  for (const Image& image : extent.images) {
    if (image.header.has_value()) newest = std::max(newest, image.header->serial);
  }
  return newest;
}

absl::Status TwoImageFile::Sync() {
  // Of each extent the last write that this flush covers; others may end and begin meanwhile.
  std::vector<std::pair<Extent*, uint64_t>> covered;
  uint64_t serial = 0;
  {
    MutexLock lock(&mu_);
    BALLAST_RETURN_IF_ERROR(failure_);
    for (auto& [number, extent] : extents_) {
      if (extent.unflushed && !extent.writing) covered.emplace_back(&extent, NewestSerial(extent));
    }
    serial = writing_serials_.empty() ? last_serial_ : *writing_serials_.begin() - 1;
  }
  const absl::Status status = Flush();
  MutexLock lock(&mu_);
  if (!status.ok()) return Fail(status);
  for (const auto& [extent, newest] : covered) {
    for (Image& image : extent->images) {
      image.flushed = image.flushed || (image.header.has_value() && image.header->serial <= newest);
      if (BALLAST_MUTANT(kFlushCountsLaterWrites)) image.flushed = image.header.has_value();
    }
    if (!extent->writing && NewestSerial(*extent) <= newest) extent->unflushed = false;
  }
  flushed_serial_ = std::max(flushed_serial_, serial);
  return absl::OkStatus();
}

absl::Status TwoImageFile::Flush() {
  BALLAST_FAILPOINT_RETURN("slots.before_sync");
  if (options_.flush) BALLAST_RETURN_IF_ERROR(file_->Sync());
  BALLAST_FAILPOINT_RETURN("slots.after_sync");
  return absl::OkStatus();
}

std::optional<uint32_t> TwoImageFile::FirstBadChunk(const ImageHeader& header, const char* data) {
  const uint64_t payload_bytes = PayloadBytes(header.shape);
  for (uint32_t i = 0; i < header.chunk_crcs.size(); ++i) {
    const uint64_t at = i * kImageChunkBytes;
    const uint64_t bytes = std::min(kImageChunkBytes, payload_bytes - at);
    if (ImageChunkCrc(header, i, data + at, bytes) != header.chunk_crcs[i]) return i;
  }
  return std::nullopt;
}

absl::StatusOr<ImageHeader> TwoImageFile::HeaderOfVersion(const Extent& source,
                                                          uint64_t version) const {
  MutexLock lock(&mu_);
  for (const Image& image : source.images) {
    if (image.header.has_value() && image.header->version == version) return *image.header;
  }
  return absl::NotFoundError(absl::StrCat("no image of extent ", source.shape.extent, " in ", path_,
                                          " holds version ", version));
}

absl::Status TwoImageFile::Read(uint32_t extent, uint64_t version, void* to) {
  BALLAST_ASSIGN_OR_RETURN(Extent* const source, Find(extent));
  BALLAST_ASSIGN_OR_RETURN(const ImageHeader header, HeaderOfVersion(*source, version));
  const uint64_t offset = header.offset + ImageHeaderBytes(source->shape);
  const uint64_t bytes = BufferBytes(source->shape);
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
  // From now on an empty place, so that the next Write leaves the other one alone.
  MutexLock lock(&mu_);
  for (Image& image : source->images) {
    // Not one that was written meanwhile, should the version have been let go.
    if (image.header.has_value() && image.header->serial == header.serial) image.header.reset();
  }
  return absl::DataLossError(absl::StrCat("version ", version, " of extent ", extent, " in ", path_,
                                          " is damaged: ", damage,
                                          "; use the extent's other image and the log"));
}

absl::StatusOr<std::unique_ptr<TwoImageFile>> Make(FileSystem* fs, const std::string& path,
                                                   const ImageOptions& options) {
  BALLAST_ASSIGN_OR_RETURN(Arena scratch, Arena::Create(Arena::kAlignmentBytes));
  return std::make_unique<TwoImageFile>(fs, path, options, std::move(scratch));
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
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<TwoImageFile> file, Make(fs, path, options));
  BALLAST_RETURN_IF_ERROR(file->CreateWith(shapes));
  return file;
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageFile::Open(FileSystem* fs, const std::string& path,
                                                           const ImageOptions& options,
                                                           const std::vector<ImageShape>& shapes) {
  BALLAST_ASSIGN_OR_RETURN(std::unique_ptr<TwoImageFile> file, Make(fs, path, options));
  BALLAST_RETURN_IF_ERROR(file->OpenWith(shapes));
  return file;
}

}  // namespace ballast::server
