// An extent's state on its way to disk: from the arrays of its tiles to the payload of an image.
// Comes from: Checkpointer, GrownFiles. Goes to: the images. Thread safety: one call at a time per
// extent. Cost: 4 bytes read and written per element and array.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/layout.h"
#include "server/state/extent_store.h"

namespace ballast::server {

// Copies the extent's state arrays to `to`, aligned to pages, in the layout of an image's payload,
// past the caches. Returns the checksums that ImageFile::Write wants with it, formed in the same
// pass.
std::vector<uint32_t> CopyToImage(const Layout& layout, ExtentStore* store, uint32_t extent,
                                  void* to);

// Bytes of memory, in whole pages, for the payload of the largest image of these extents: one at a
// time fits. `arrays`: of the state, the master weights included. 0 without extents.
uint64_t LargestImageBytes(const Layout& layout, const std::vector<uint32_t>& extents,
                           uint32_t arrays);

}  // namespace ballast::server
