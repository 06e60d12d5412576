// ImageFile: the rolling checkpoint of one job at one server. Two places per extent, each with its
// own version; the older one is overwritten, so that a crash in the middle leaves the other.
// Recovery is the newest whole image of each extent plus the gradient log. docs/formats/images.md
// has the grammar. Comes from: the round log and the NVMe tier (writes and reads), recovery. Goes
// to: common/io files. Thread safety: thread-safe, but one Read, Write or Forget of an extent at a
// time; a held version may be read during it. Calls block on the disk where they say Read, Write or
// Sync.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/file.h"

namespace ballast::server {

// One checksum for each of these of a payload; the last piece is shorter.
constexpr uint64_t kImageChunkBytes = uint64_t{64} << 10;

// The contents of an image. The payload is, tile after tile, each state array's values of that tile
// (AdamW: p, m, v; fp32). `array_count` has no default: left out, it asks for no memory at all,
// which fails with every optimizer.
struct ImageShape {
  uint32_t extent = 0;
  uint32_t elements = 0;
  uint32_t array_count = 0;

  bool operator==(const ImageShape&) const = default;
};

struct ImageOptions {
  uint64_t job = 0;
  uint32_t server = 0;
  uint32_t optimizer = 0;   // OptimizerKind
  uint32_t formula_id = 0;  // of the kernels that made the values
  uint32_t tile_elements = 0;
  bool flush = true;
  bool direct = true;
  int open_threads = 4;  // that Open reads with, several requests being under way at a time
  // Images of each extent: two; one in a file written once, such as a snapshot's.
  uint32_t places = 2;
  // Open only: nothing is written or rewritten; Write and Sync are errors.
  bool read_only = false;
};

class ImageFile {
 public:
  // Bytes of disk for `shapes`, with `places` images of each.
  static uint64_t DiskBytes(const std::vector<ImageShape>& shapes, uint32_t places = 2);
  // Bytes of a payload, and of the buffer that Write and Read want: a multiple of kPageBytes.
  static uint64_t PayloadBytes(const ImageShape& shape);
  static uint64_t BufferBytes(const ImageShape& shape);

  // Makes the file, all images empty. RESOURCE_EXHAUSTED with the bytes needed and free.
  static absl::StatusOr<std::unique_ptr<ImageFile>> Create(FileSystem* fs, const std::string& path,
                                                           const ImageOptions& options,
                                                           const std::vector<ImageShape>& shapes);
  // Reads the headers, and rewrites each image that no later write proves flushed: it may have been
  // in the kernel's cache only. An image whose header is damaged or torn counts as empty.
  // FAILED_PRECONDITION for a file of another job, server, shape or format version.
  static absl::StatusOr<std::unique_ptr<ImageFile>> Open(FileSystem* fs, const std::string& path,
                                                         const ImageOptions& options,
                                                         const std::vector<ImageShape>& shapes);
  virtual ~ImageFile() = default;

  // Versions in the extent's images, newest first; empty places are left out. Version v is the
  // state that round v starts from. The payload of a listed version may be damaged.
  virtual std::vector<uint64_t> Versions(uint32_t extent) const = 0;

  // The extent's images count as empty from now on, regardless of their content, and none is held.
  virtual void Forget(uint32_t extent) = 0;

  // The newest version of the extent that a flush has covered, 0 for none; the held version while
  // there is one, as the other image may be overwritten.
  virtual uint64_t Flushed(uint32_t extent) const = 0;
  // Whether a Write of the extent would be refused until a Sync.
  virtual bool NeedsSync(uint32_t extent) const = 0;

  // Holds the newest flushed version of the extent: until LetGo was called as often as Hold, no
  // Write overwrites it, so that a snapshot need not copy it at once. Until then every
  // Write goes to the other place, even if its image is newer. So the holder must keep the rounds
  // of the log that lead from the held version to later ones. Held extents return the version that
  // they hold already. NOT_FOUND when the extent has none, INVALID_ARGUMENT for an extent of
  // another file. Holds are not stored in the file.
  virtual absl::StatusOr<uint64_t> Hold(uint32_t extent) = 0;
  virtual void LetGo(uint32_t extent) = 0;
  // The held version; nullopt when none is held.
  virtual std::optional<uint64_t> Held(uint32_t extent) const = 0;

  // Overwrites the extent's older (or an empty) image, never a held one. `data` has BufferBytes,
  // aligned to kPageBytes; bytes after PayloadBytes are written as they are. `chunk_crcs`: Crc32c
  // of each kImageChunkBytes of the payload, from the code that made it and had it in a cache then;
  // if empty, they are computed here. INVALID_ARGUMENT for another number of them. Counts after
  // Sync; until then another Write of the extent is FAILED_PRECONDITION, as it would overwrite the
  // only safe image. INTERNAL unless `version` is newer than the extent's images. An error of a
  // write or flush is final.
  virtual absl::Status Write(uint32_t extent, uint64_t version, const void* data,
                             absl::Span<const uint32_t> chunk_crcs) = 0;
  absl::Status Write(uint32_t extent, uint64_t version, const void* data) {
    return Write(extent, version, data, {});
  }
  // Makes durable every Write that returned before this call.
  virtual absl::Status Sync() = 0;

  // Reads the image with `version`; `to` as in Write. NOT_FOUND when there is none. DATA_LOSS,
  // naming extent, version and offset, when the bytes are not the written ones; the image counts as
  // empty from then on.
  virtual absl::Status Read(uint32_t extent, uint64_t version, void* to) = 0;
};

}  // namespace ballast::server
