// The header pages of the image file, as structs and as bytes. docs/formats/images.md has the
// layout and a worked example.
//
//   file := file header (4 KiB) (image image)*   ; two for each extent, in the order of the shapes;
//                                              ; one in a file written once
//   image := image header (whole pages) payload padding to 4 KiB
//
// Comes from: ImageFile. Goes to: docs/formats/images.md. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/durability/images/image_file.h"

namespace ballast::server {

struct ImageHeader {
  uint64_t job = 0;
  uint32_t server = 0;
  uint64_t offset = 0;   // of this header in the file
  uint64_t version = 0;  // of the state: what round `version` starts from
  uint64_t serial = 0;   // of the write, from 1 in each file
  // Every write up to this one was flushed before this one began.
  uint64_t flushed_serial = 0;
  ImageShape shape;
  uint32_t optimizer = 0;
  uint32_t formula_id = 0;
  uint32_t tile_elements = 0;
  std::vector<uint32_t> chunk_crcs;  // ChunkCrc of each chunk
};

// Bytes of an image's header: whole pages, as many as the checksums need.
uint64_t ImageHeaderBytes(const ImageShape& shape);
// Bytes of an image: its header and its payload, both in whole pages.
uint64_t ImageBytes(const ImageShape& shape);
// Chunks of a payload.
uint64_t ImageChunks(const ImageShape& shape);

// Writes the file's header page.
void EncodeImageFilePage(const ImageOptions& options, char* page);
// The inverse; `flush`, `direct`, `open_threads` and `read_only` are not in it. DATA_LOSS for
// anything that EncodeImageFilePage cannot have produced, FAILED_PRECONDITION for a whole page of
// another version.
absl::StatusOr<ImageOptions> DecodeImageFilePage(const char* page);

// Writes ImageHeaderBytes(header.shape) bytes. `chunk_crcs` has ImageChunks entries.
void EncodeImageHeader(const ImageHeader& header, char* to);
// The inverse for an image of `shape`; errors as above. A header of another shape is returned too,
// as far as it fits the same bytes; the caller compares.
absl::StatusOr<ImageHeader> DecodeImageHeader(const ImageShape& shape, const char* from);

// Checksum of the `index`th chunk of a payload, bound to the image's identity and the chunk's
// place. Uses all of `header` but chunk_crcs.
uint32_t ImageChunkCrc(const ImageHeader& header, uint32_t index, const char* chunk,
                       uint64_t bytes);
// The same from Crc32c of the chunk alone.
uint32_t ImageChunkCrc(const ImageHeader& header, uint32_t index, uint32_t crc, uint64_t bytes);

}  // namespace ballast::server
