// The file of an ImageFile: writes, reads and checks its header page and its images. It does not
// know which images count; ImageBook does.
// Comes from: ImageFile. Goes to: common/io files.
// Thread safety: thread-compatible while it is created or opened; then thread-safe for different
// images. Calls block on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/arena.h"
#include "common/io/file.h"
#include "server/durability/images/image_file.h"
#include "server/durability/images/image_format.h"

namespace ballast::server {

class ImageDisk {
 public:
  // `fs` outlives this. `scratch` has room for the largest header.
  ImageDisk(FileSystem* fs, std::string path, const ImageOptions& options, Arena scratch)
      : fs_(fs), path_(std::move(path)), options_(options), scratch_(std::move(scratch)) {}

  const std::string& path() const { return path_; }
  const ImageOptions& options() const { return options_; }
  // Bytes of the largest image header that it reads.
  uint64_t header_bytes_max() const { return scratch_.bytes(); }

  // Makes the file with `bytes` of it, all images empty. RESOURCE_EXHAUSTED with the bytes needed
  // and free. An error leaves no file.
  absl::Status Create(uint64_t bytes);
  // Opens the file and checks its header page and that it has `bytes`, which the images of
  // `extent_count` extents need. FAILED_PRECONDITION and DATA_LOSS as ImageFile::Open.
  absl::Status Open(uint64_t bytes, size_t extent_count);

  // The header of an image of `shape` at byte `offset`; none when it is torn, damaged or empty.
  // `scratch` has header_bytes_max. FAILED_PRECONDITION for a header of another job, server, shape
  // or format version.
  absl::StatusOr<std::optional<ImageHeader>> ReadHeader(const ImageShape& shape, uint64_t offset,
                                                        const Arena& scratch) const;
  // Writes an image: `data`, of BufferBytes, then `header`, which gets its checksums first. They
  // are computed here if `chunk_crcs` is empty; see ImageFile::Write. A Flush makes it durable.
  absl::Status Write(ImageHeader* header, const char* data, absl::Span<const uint32_t> chunk_crcs);
  // Writes an image whose header has its checksums; one call at a time.
  absl::Status WriteAgain(const ImageHeader& header, const char* data);
  // Makes durable all writes that returned before this call.
  absl::Status Flush();
  // Reads the payload that `header` describes into `to`, of BufferBytes. DATA_LOSS, naming extent,
  // version and offset, when the bytes are not the written ones.
  absl::Status Read(const ImageHeader& header, void* to) const;

 private:
  absl::Status CheckRoom(uint64_t bytes) const;
  absl::Status CheckFileHeader() const;
  absl::Status CheckMatches(const ImageShape& shape, const ImageHeader& header) const;
  // Payload, then header; one flush makes both count.
  absl::Status WriteImage(uint64_t offset, ConstBytes header, ConstBytes payload);

  FileSystem* const fs_;
  const std::string path_;
  const ImageOptions options_;
  const Arena scratch_;         // for headers
  std::unique_ptr<File> file_;  // constant after Create or Open
};

}  // namespace ballast::server
