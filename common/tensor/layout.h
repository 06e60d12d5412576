// From a list of named tensors to groups, flat spaces, tiles, extents and owners: the only place
// with that arithmetic. Comes from: a job's manifest. Goes to: every room that touches extents.
//
//   tensors --(group, dtype)--> flat spaces --extent_elements--> extents --bytes--> servers
//
// A flat space holds the tensors of one (group, parameter dtype) one after the other without
// padding; it is cut into extents of `extent_elements` (the last one short). The layout depends on
// neither world size nor server count and only ever grows: Append adds tensors in new groups, hence
// new flat spaces and new extents after the old ones.
// Thread safety: immutable after Build/Append, apart from those two.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tensor/dtype.h"

namespace ballast {

// The layout's view of a tensor.
struct LayoutTensor {
  uint64_t elements = 0;
  DType dtype = DType::kF32;
  uint32_t group = 0;
};

// A contiguous piece of one tensor inside one extent.
struct Run {
  uint32_t tensor = 0;
  uint64_t tensor_offset = 0;  // elements from the tensor's start
  uint32_t extent_offset = 0;  // elements from the extent's start
  uint32_t elements = 0;
};

struct Extent {
  uint32_t group = 0;
  DType dtype = DType::kF32;
  uint32_t elements = 0;
  uint32_t first_run = 0;  // into Layout::runs(); runs of an extent are ascending and gapless
  uint32_t run_count = 0;
};

class Layout {
 public:
  // `tile_elements`: multiple of 64, at least 64; `extent_elements`: multiple of tile_elements, at
  // most 16 Mi. Errors: INVALID_ARGUMENT with the value and the limit.
  static absl::StatusOr<Layout> Build(const std::vector<LayoutTensor>& tensors,
                                      uint32_t tile_elements, uint32_t extent_elements);

  // Appends tensors, all in groups not yet in use. Existing extents keep their ids and runs.
  // Errors: INVALID_ARGUMENT when a tensor names an existing group; the layout is unchanged then.
  absl::Status Append(const std::vector<LayoutTensor>& tensors);

  const std::vector<LayoutTensor>& tensors() const { return tensors_; }
  const std::vector<Extent>& extents() const { return extents_; }
  const std::vector<Run>& runs() const { return runs_; }
  uint32_t tile_elements() const { return tile_elements_; }
  uint32_t extent_elements() const { return extent_elements_; }
  uint64_t total_elements() const { return total_elements_; }
  // Bytes of an extent's gradient or weight on the wire.
  uint32_t ExtentWireBytes(uint32_t extent) const;
  // Canonical push order of all extents: those of the last tensors first, since backward produces
  // their gradients first. A server's own push order is this list without the others' extents.
  const std::vector<uint32_t>& push_order() const { return push_order_; }
  // The extent's number among those of its flat space, in push order: 0 is pushed first. It stays
  // when the layout grows.
  uint32_t Turn(uint32_t extent) const { return turns_[extent]; }

 private:
  void AppendSpaces(size_t first_tensor);
  // Forms the push order, and with it the turns.
  void OrderExtents();

  uint32_t tile_elements_ = 0;
  uint32_t extent_elements_ = 0;
  uint64_t total_elements_ = 0;
  std::vector<LayoutTensor> tensors_;
  std::vector<Extent> extents_;
  std::vector<Run> runs_;
  std::vector<uint32_t> push_order_;
  std::vector<uint32_t> turns_;  // per extent
};

// Owner index (0..server_count-1) of every extent. Pure function of layout and server count:
// extents in id order each go to the server with the fewest state bytes so far, lowest index first.
// `existing` (may be empty) is kept as the prefix: a layout that grew keeps its owners.
std::vector<uint32_t> PlanOwners(const Layout& layout, uint32_t server_count,
                                 const std::vector<uint32_t>& existing = {});

// A maximal byte range of an extent with gradients inside one chunk-aligned cell: exactly the
// content of one frame. Sender and receiver derive the same list.
struct ChunkRange {
  uint32_t offset_bytes = 0;
  uint32_t length_bytes = 0;
};

// Frames of `extent` when only tensors with present[t] contribute (empty vector: all present),
// ascending. `chunk_bytes` is a multiple of 64.
std::vector<ChunkRange> ChunkRanges(const Layout& layout, uint32_t extent, uint32_t chunk_bytes,
                                    const std::vector<bool>& present);

}  // namespace ballast
