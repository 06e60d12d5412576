// Which images of an ImageFile count: the version in each place, whether a flush has covered it,
// and whether it is held. It chooses the place of each write and knows that of each read; it does
// no I/O.
// Comes from: ImageFile. Goes to: nothing. Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/sync.h"
#include "server/durability/images/image_file.h"
#include "server/durability/images/image_format.h"

namespace ballast::server {

class ImageBook {
 public:
  // Where an extent's images lie.
  struct Places {
    ImageShape shape;
    std::vector<uint64_t> offsets;  // in the file, one for each image
  };
  // The images that a flush beginning now will cover.
  struct Covered {
    std::vector<std::pair<uint32_t, uint64_t>> extents;  // with the serial of the newest write
    uint64_t serial = 0;                                 // every write up to this one
  };

  // Lays out the images of `shapes`, which differ in their extents, one after another. All are
  // empty. Errors name `path`.
  ImageBook(std::string path, const ImageOptions& options, const std::vector<ImageShape>& shapes);
  ImageBook(const ImageBook&) = delete;
  ImageBook& operator=(const ImageBook&) = delete;

  // Bytes of the file: its header page and all images.
  uint64_t file_bytes() const { return file_bytes_; }
  // Of all extents, in their order.
  std::vector<Places> AllPlaces() const;
  // INVALID_ARGUMENT for an extent of another file.
  absl::StatusOr<ImageShape> ShapeOf(uint32_t extent) const;

  // As ImageFile.
  std::vector<uint64_t> Versions(uint32_t extent) const;
  uint64_t Flushed(uint32_t extent) const;
  bool NeedsSync(uint32_t extent) const;
  void Forget(uint32_t extent);
  absl::StatusOr<uint64_t> Hold(uint32_t extent);
  void LetGo(uint32_t extent);
  std::optional<uint64_t> Held(uint32_t extent) const;

  // Opening: an image lies at header.offset.
  void Found(ImageHeader header);
  // Opening, once all are found: counts them as flushed, and returns those that no later write
  // proves flushed. The caller rewrites these, and flushes.
  std::vector<ImageHeader> TakeUnproven();

  // Begins a write of `version`: returns its header without checksums. The image at header.offset
  // is empty from now on. Errors as ImageFile::Write.
  absl::StatusOr<ImageHeader> BeginWrite(uint32_t extent, uint64_t version);
  // Ends it with the written header, or with an error, which is final.
  absl::Status EndWrite(ImageHeader header, const absl::Status& status);

  // Begins a flush, or returns the final error. Writes may begin and end meanwhile.
  absl::StatusOr<Covered> BeginSync() const;
  absl::Status EndSync(const Covered& covered, const absl::Status& status);
  // From now on every write and flush returns this error. Returns it, too.
  absl::Status Fail(const absl::Status& cause);

  // The header of an image to read. NOT_FOUND when no image has `version`, INVALID_ARGUMENT for an
  // extent of another file.
  absl::StatusOr<ImageHeader> HeaderOf(uint32_t extent, uint64_t version) const;
  // The image with this header is damaged: its place is empty from now on, so that the next write
  // leaves the other one alone.
  void Damaged(const ImageHeader& header);

 private:
  struct Place {
    uint64_t offset = 0;
    std::optional<ImageHeader> header;  // none: empty, torn, damaged or being written
    bool flushed = false;
  };
  struct ExtentImages {
    ImageShape shape;
    std::vector<Place> images;  // one or two
    bool writing = false;
    bool unflushed = false;  // the newer image is not flushed yet: the other one must stay
    uint32_t holds = 0;
    Place* held = nullptr;  // while holds > 0
  };

  // Null for an extent of another file.
  const ExtentImages* Find(uint32_t extent) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ExtentImages* Find(uint32_t extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NotHere(uint32_t extent) const;
  ImageHeader NewHeader(const ImageShape& shape, uint64_t offset, uint64_t version) const;
  // The image to overwrite: an empty one, else the older; never a held one.
  static Place* Overwritable(ExtentImages* extent);
  static std::vector<uint64_t> VersionsOf(const ExtentImages& extent);
  // Index of its image.
  static std::optional<size_t> NewestFlushed(const ExtentImages& extent);
  static uint64_t NewestSerial(const ExtentImages& extent);
  absl::Status SetFailure(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const ImageOptions options_;
  uint64_t file_bytes_ = 0;  // constant after construction

  mutable Mutex mu_;
  std::map<uint32_t, ExtentImages> extents_ ABSL_GUARDED_BY(mu_);
  uint64_t last_serial_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t flushed_serial_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<uint64_t> writing_serials_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
