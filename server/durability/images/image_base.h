// ImageBase: the extents that a forked job has borrowed, as the file `base` in its directory. Its
// images begin in those of a snapshot: hard links `base-<server>` next to it, so the snapshot may
// be removed. docs/formats/images.md has the grammar.
//
//   file := magic, version, reserved, length      ; 24 bytes
//           job, server, lender, round, optimizer, formula, tile elements, part count
//           (server, shape count, (extent, elements, arrays)*)*
//           crc                                   ; CRC32C of everything in front
//
// Comes from: SnapshotStore (writes), BorrowedImages (reads). Goes to: common/io files.
// Thread safety: plain values; reading and writing block on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file.h"
#include "server/durability/images/image_file.h"

namespace ballast::server {

constexpr size_t kImageBaseBytesMax = size_t{256} << 20;

// An image file with one place for each extent, and all extents it was made with.
struct ImageBasePart {
  uint32_t server = 0;  // that wrote it
  std::vector<ImageShape> shapes;

  bool operator==(const ImageBasePart&) const = default;
};

struct ImageBase {
  uint64_t job = 0;  // that borrows, and at which server
  uint32_t server = 0;
  uint64_t lender = 0;  // the job whose states they are
  uint64_t round = 0;   // version of every extent
  uint32_t optimizer = 0;
  uint32_t formula_id = 0;
  uint32_t tile_elements = 0;
  std::vector<ImageBasePart> parts;

  bool operator==(const ImageBase&) const = default;
};

std::string EncodeImageBase(const ImageBase& base);
// DATA_LOSS for anything that EncodeImageBase cannot have written, FAILED_PRECONDITION for a newer
// version.
absl::StatusOr<ImageBase> DecodeImageBase(absl::string_view bytes);

// Where the base of the images in `directory` is, and the part of `server`.
std::string ImageBasePath(const std::string& directory);
std::string ImageBasePartPath(const std::string& directory, uint32_t server);
// Options to open the part of `server` for reading.
ImageOptions ImageBasePartOptions(const ImageBase& base, uint32_t server, bool direct);

}  // namespace ballast::server
