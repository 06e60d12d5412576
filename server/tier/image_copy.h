// An extent's state on its way to disk: from the arrays of its tiles to the payload of an image.
// Comes from: Checkpointer, growth. Goes to: the images. Thread safety: one call at a time per
// extent. Cost: 4 bytes read and written per element and array.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/layout.h"
#include "server/durability/images/image_file.h"
#include "server/tier/tier.h"

namespace ballast::server {

// An extent that a placement holds.
struct PlacedExtent {
  uint32_t extent = 0;
  uint32_t elements = 0;
  uint64_t stored = 0;  // the newest version in its images; 0: none
  bool fresh = true;    // new in this layout
};

// The extents `owned` of `layout`; those already in `before` are stored as of `version`.
std::vector<PlacedExtent> PlacedOf(const Layout& layout, const std::vector<uint32_t>& owned,
                                   const std::vector<PlacedExtent>& before, uint64_t version);

// Copies the state of an extent, as tile_layout.h places it, to `to`, aligned to pages, in the
// layout of an image's payload, past the caches. Returns the checksums that ImageFile::Write wants
// with it, computed in the same pass.
std::vector<uint32_t> CopyToImage(float* state, uint32_t elements, const StateShape& shape,
                                  void* to);

// Bytes of memory, in whole pages, for the payload of the largest image of these extents. `arrays`
// counts the state arrays, master weights included. 0 without extents.
uint64_t LargestImageBytes(const std::vector<PlacedExtent>& extents, uint32_t arrays);

// Writes each of `extents` to `images` as its state of `version`, and flushes them. `payload` puts
// an extent's payload at `to` and returns its checksums, which may be empty.
using FormPayload =
    std::function<absl::StatusOr<std::vector<uint32_t>>(const PlacedExtent& one, void* to)>;
absl::Status CopyExtents(const std::vector<PlacedExtent>& extents, uint32_t arrays,
                         ImageFile* images, uint64_t version, const FormPayload& payload);

}  // namespace ballast::server
