#include "server/tier/checkpointer.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "server/tier/tile_layout.h"

namespace ballast::server {

absl::StatusOr<Checkpointer> Checkpointer::Create(const StateShape& shape,
                                                  std::vector<PlacedExtent> extents,
                                                  uint32_t rounds) {
  Checkpointer out;
  std::vector<PlacedExtent> copied = extents;
  std::erase_if(copied, [&](const PlacedExtent& one) {
    return tier::IsPacked(one.elements, shape.tile_elements);
  });
  const uint64_t largest = LargestImageBytes(copied, shape.arrays);
  if (largest > 0) {
    BALLAST_ASSIGN_OR_RETURN(BufferPool pool, BufferPool::Create({.buffer_bytes = largest,
                                                                  .max_buffers = 2 * kWritingMax,
                                                                  .grow_bytes = largest}));
    out.pool_.push_back(std::move(pool));
  }
  out.share_ = static_cast<uint32_t>((extents.size() + rounds - 1) / std::max<uint32_t>(1, rounds));
  out.shape_ = shape;
  out.extents_ = std::move(extents);
  return out;
}

void Checkpointer::OnRound() {
  // Writes missed in their round are made up for, but never more than one per extent.
  due_ = std::min<uint64_t>(due_ + share_, extents_.size());
}

size_t Checkpointer::Oldest(uint64_t version) const {
  const auto oldest =
      std::min_element(extents_.begin(), extents_.end(),
                       [](const auto& a, const auto& b) { return a.stored < b.stored; });
  if (oldest == extents_.end() || oldest->stored >= version) return SIZE_MAX;
  return static_cast<size_t>(oldest - extents_.begin());
}

size_t Checkpointer::IndexOf(uint32_t extent) const {
  const auto at = std::find_if(extents_.begin(), extents_.end(),
                               [extent](const auto& one) { return one.extent == extent; });
  return static_cast<size_t>(at - extents_.begin());
}

absl::StatusOr<ExtentImage> Checkpointer::Form(const std::shared_ptr<DramTier>& tier,
                                               const PlacedExtent& one, const Wrap& wrap) {
  float* const state = tier->State(one.extent);
  if (!tier::IsPacked(one.elements, shape_.tile_elements)) {
    BALLAST_ASSIGN_OR_RETURN(const BufferRef buffer, pool_[0].Acquire());
    return ExtentImage{.data = buffer.data(),
                       .owner = buffer.ToShared(),
                       .chunk_crcs = CopyToImage(state, one.elements, shape_, buffer.data())};
  }
  // The owner is let go once the bytes are written, before the flush that makes them safe.
  tier->BeginWrite(one.extent);
  const auto end =
      wrap([tier, extent = one.extent](const absl::Status&) { tier->EndWrite(extent); });
  return ExtentImage{
      .data = state,
      .owner = std::shared_ptr<const void>(state, [tier, end](const void*) { end({}); })};
}

void Checkpointer::Pump(const std::shared_ptr<DramTier>& tier, ImageStore* images, uint64_t version,
                        bool short_of_room, const Wrap& wrap, const Written& on_written) {
  while (writing_.size() < kWritingMax) {
    const bool initial = !initial_.empty();
    if (!initial && due_ == 0 && !short_of_room) return;
    const size_t index = initial ? IndexOf(initial_.front()) : Oldest(version);
    if (index == SIZE_MAX) return;
    PlacedExtent& one = extents_[index];
    absl::StatusOr<ExtentImage> image = Form(tier, one, wrap);
    if (!image.ok()) return;  // The last owner has not let go yet; the next call tries again.
    if (initial) {
      initial_.pop_front();
      ++initial_writing_;
    } else {
      if (due_ > 0) --due_;
      short_of_room = false;  // One at a time, then look again.
    }
    one.stored = version;
    writing_.push_back(initial);
    image->extent = one.extent;
    image->version = version;
    image->initial = initial;
    images->WriteImage(*std::move(image), on_written);
  }
}

void Checkpointer::OnWritten() {
  if (writing_.front()) --initial_writing_;
  writing_.pop_front();
}

}  // namespace ballast::server
