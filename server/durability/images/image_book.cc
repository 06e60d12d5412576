#include "server/durability/images/image_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/faults/mutant.h"

namespace ballast::server {

ImageBook::ImageBook(std::string path, const ImageOptions& options,
                     const std::vector<ImageShape>& shapes)
    : path_(std::move(path)), options_(options), file_bytes_(kPageBytes) {
  MutexLock lock(&mu_);
  for (const ImageShape& shape : shapes) {
    ExtentImages& extent = extents_[shape.extent];
    extent.shape = shape;
    extent.images.resize(options_.places);
    for (Place& image : extent.images) {
      image.offset = file_bytes_;
      file_bytes_ += ImageBytes(shape);
    }
  }
}

std::vector<ImageBook::Places> ImageBook::AllPlaces() const {
  MutexLock lock(&mu_);
  std::vector<Places> all;
  for (const auto& [number, extent] : extents_) {
    Places& places = all.emplace_back();
    places.shape = extent.shape;
    for (const Place& image : extent.images) places.offsets.push_back(image.offset);
  }
  return all;
}

const ImageBook::ExtentImages* ImageBook::Find(uint32_t extent) const {
  const auto found = extents_.find(extent);
  return found == extents_.end() ? nullptr : &found->second;
}

ImageBook::ExtentImages* ImageBook::Find(uint32_t extent) {
  const auto found = extents_.find(extent);
  return found == extents_.end() ? nullptr : &found->second;
}

absl::Status ImageBook::NotHere(uint32_t extent) const {
  return absl::InvalidArgumentError(absl::StrCat("extent ", extent, " has no images in ", path_));
}

absl::StatusOr<ImageShape> ImageBook::ShapeOf(uint32_t extent) const {
  MutexLock lock(&mu_);
  const ExtentImages* const found = Find(extent);
  if (found == nullptr) return NotHere(extent);
  return found->shape;
}

// Versions and holds.

std::vector<uint64_t> ImageBook::VersionsOf(const ExtentImages& extent) {
  std::vector<uint64_t> versions;
  for (const Place& image : extent.images) {
    if (image.header.has_value()) versions.push_back(image.header->version);
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

std::optional<size_t> ImageBook::NewestFlushed(const ExtentImages& extent) {
  std::optional<size_t> newest;
  for (size_t i = 0; i < extent.images.size(); ++i) {
    const Place& image = extent.images[i];
    if (!image.header.has_value() || !image.flushed) continue;
    if (!newest || image.header->version > extent.images[*newest].header->version) newest = i;
  }
  return newest;
}

std::vector<uint64_t> ImageBook::Versions(uint32_t extent) const {
  MutexLock lock(&mu_);
  const ExtentImages* const found = Find(extent);
  return found == nullptr ? std::vector<uint64_t>{} : VersionsOf(*found);
}

uint64_t ImageBook::Flushed(uint32_t extent) const {
  MutexLock lock(&mu_);
  const ExtentImages* const found = Find(extent);
  if (found == nullptr) return 0;
  // A held one may be the only whole one while the other is written.
  const Place* const held = found->held;
  if (held != nullptr && held->header.has_value()) return held->header->version;
  const std::optional<size_t> newest = NewestFlushed(*found);
  return newest ? found->images[*newest].header->version : 0;
}

bool ImageBook::NeedsSync(uint32_t extent) const {
  MutexLock lock(&mu_);
  const ExtentImages* const found = Find(extent);
  return found != nullptr && found->unflushed;
}

void ImageBook::Forget(uint32_t extent) {
  MutexLock lock(&mu_);
  ExtentImages* const target = Find(extent);
  if (target == nullptr) return;
  for (Place& image : target->images) {
    image.header.reset();
    image.flushed = false;
  }
  target->holds = 0;
  target->held = nullptr;
}

absl::StatusOr<uint64_t> ImageBook::Hold(uint32_t extent) {
  MutexLock lock(&mu_);
  ExtentImages* const target = Find(extent);
  if (target == nullptr) return NotHere(extent);
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

void ImageBook::LetGo(uint32_t extent) {
  MutexLock lock(&mu_);
  ExtentImages* const target = Find(extent);
  if (target == nullptr) return;
  if (target->holds > 0 && --target->holds == 0) target->held = nullptr;
}

std::optional<uint64_t> ImageBook::Held(uint32_t extent) const {
  MutexLock lock(&mu_);
  const ExtentImages* const found = Find(extent);
  if (found == nullptr || found->held == nullptr) return std::nullopt;
  if (!found->held->header.has_value()) return std::nullopt;
  return found->held->header->version;
}

// Opening.

void ImageBook::Found(ImageHeader header) {
  MutexLock lock(&mu_);
  for (Place& image : extents_.at(header.shape.extent).images) {
    if (image.offset == header.offset) image.header = std::move(header);
  }
}

// After a failed flush the kernel may give back bytes that the disk does not have, and no later
// flush saves them. An image counts as flushed when a later write says so; that is all but the
// newest of them, or the images of one flush.
std::vector<ImageHeader> ImageBook::TakeUnproven() {
  MutexLock lock(&mu_);
  for (auto& [number, extent] : extents_) {
    for (Place& image : extent.images) {
      if (!image.header.has_value()) continue;
      last_serial_ = std::max(last_serial_, image.header->serial);
      flushed_serial_ = std::max(flushed_serial_, image.header->flushed_serial);
      image.flushed = true;  // By the flush that follows, at the latest.
    }
  }
  std::vector<ImageHeader> unproven;
  for (const auto& [number, extent] : extents_) {
    for (const Place& image : extent.images) {
      if (image.header.has_value() && image.header->serial > flushed_serial_) {
        unproven.push_back(*image.header);
      }
    }
  }
  return unproven;
}

// Writes and flushes.

ImageBook::Place* ImageBook::Overwritable(ExtentImages* extent) {
  if (extent->images.size() == 1) return &extent->images[0];
  Place& first = extent->images[0];
  Place& second = extent->images[1];
  if (extent->held == &first) return &second;
  if (extent->held == &second) return &first;
  if (!first.header.has_value()) return &first;
  if (!second.header.has_value()) return &second;
  const bool first_is_older = first.header->version < second.header->version;
  return first_is_older != BALLAST_MUTANT(kImageInPlace) ? &first : &second;
}

ImageHeader ImageBook::NewHeader(const ImageShape& shape, uint64_t offset, uint64_t version) const {
  return {.job = options_.job,
          .server = options_.server,
          .offset = offset,
          .version = version,
          .shape = shape,
          .optimizer = options_.optimizer,
          .formula_id = options_.formula_id,
          .tile_elements = options_.tile_elements};
}

absl::StatusOr<ImageHeader> ImageBook::BeginWrite(uint32_t extent, uint64_t version) {
  MutexLock lock(&mu_);
  ExtentImages* const target = Find(extent);
  if (target == nullptr) return NotHere(extent);
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
  Place* const image = Overwritable(target);
  ImageHeader header = NewHeader(target->shape, image->offset, version);
  header.serial = ++last_serial_;
  header.flushed_serial = flushed_serial_;
  writing_serials_.insert(header.serial);
  image->header.reset();
  image->flushed = false;
  target->unflushed = true;
  target->writing = true;
  return header;
}

absl::Status ImageBook::EndWrite(ImageHeader header, const absl::Status& status) {
  MutexLock lock(&mu_);
  ExtentImages& target = extents_.at(header.shape.extent);
  writing_serials_.erase(header.serial);
  target.writing = false;
  if (!status.ok()) return SetFailure(status);
  for (Place& image : target.images) {
    if (image.offset == header.offset) image.header = std::move(header);
  }
  return absl::OkStatus();
}

uint64_t ImageBook::NewestSerial(const ExtentImages& extent) {
  uint64_t newest = 0;
  for (const Place& image : extent.images) {
    if (image.header.has_value()) newest = std::max(newest, image.header->serial);
  }
  return newest;
}

absl::StatusOr<ImageBook::Covered> ImageBook::BeginSync() const {
  MutexLock lock(&mu_);
  BALLAST_RETURN_IF_ERROR(failure_);
  Covered covered;
  for (const auto& [number, extent] : extents_) {
    if (extent.unflushed && !extent.writing) {
      covered.extents.emplace_back(number, NewestSerial(extent));
    }
  }
  covered.serial = writing_serials_.empty() ? last_serial_ : *writing_serials_.begin() - 1;
  return covered;
}

absl::Status ImageBook::EndSync(const Covered& covered, const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!status.ok()) return SetFailure(status);
  for (const auto& [number, newest] : covered.extents) {
    ExtentImages& extent = extents_.at(number);
    for (Place& image : extent.images) {
      image.flushed = image.flushed || (image.header.has_value() && image.header->serial <= newest);
      if (BALLAST_MUTANT(kFlushCountsLaterWrites)) image.flushed = image.header.has_value();
    }
    if (!extent.writing && NewestSerial(extent) <= newest) extent.unflushed = false;
  }
  flushed_serial_ = std::max(flushed_serial_, covered.serial);
  return absl::OkStatus();
}

absl::Status ImageBook::Fail(const absl::Status& cause) {
  MutexLock lock(&mu_);
  return SetFailure(cause);
}

absl::Status ImageBook::SetFailure(const absl::Status& cause) {
  const auto code = absl::IsResourceExhausted(cause) ? absl::StatusCode::kInternal : cause.code();
  failure_ = absl::Status(code, absl::StrCat("the images take nothing more until they are opened ",
                                             "again: ", cause.message()));
  return failure_;
}

// Reads.

absl::StatusOr<ImageHeader> ImageBook::HeaderOf(uint32_t extent, uint64_t version) const {
  MutexLock lock(&mu_);
  const ExtentImages* const source = Find(extent);
  if (source == nullptr) return NotHere(extent);
  for (const Place& image : source->images) {
    if (image.header.has_value() && image.header->version == version) return *image.header;
  }
  return absl::NotFoundError(
      absl::StrCat("no image of extent ", extent, " in ", path_, " holds version ", version));
}

void ImageBook::Damaged(const ImageHeader& header) {
  MutexLock lock(&mu_);
  for (Place& image : extents_.at(header.shape.extent).images) {
    // Not a version written meanwhile, should this one have been let go.
    if (image.header.has_value() && image.header->serial == header.serial) image.header.reset();
  }
}

}  // namespace ballast::server
