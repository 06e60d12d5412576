#include "server/round/checkpointer.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "server/durability/image_file.h"
#include "server/round/image_copy.h"

namespace ballast::server {

absl::StatusOr<Checkpointer> Checkpointer::Create(const Layout& layout, uint32_t arrays,
                                                  std::vector<uint32_t> owned,
                                                  std::vector<uint64_t> versions, uint32_t rounds) {
  Checkpointer out;
  const uint64_t largest = LargestImageBytes(layout, owned, arrays);
  if (largest > 0) {
    BALLAST_ASSIGN_OR_RETURN(BufferPool pool, BufferPool::Create({.buffer_bytes = largest,
                                                                  .max_buffers = 2 * kWritingMax,
                                                                  .grow_bytes = largest}));
    out.pool_.push_back(std::move(pool));
  }
  out.share_ = static_cast<uint32_t>((owned.size() + rounds - 1) / std::max<uint32_t>(1, rounds));
  out.owned_ = std::move(owned);
  out.versions_ = std::move(versions);
  return out;
}

void Checkpointer::OnRound() {
  // What could not be written in its round is made up for, but never more than one of each.
  due_ = std::min<uint64_t>(due_ + share_, owned_.size());
}

size_t Checkpointer::Oldest(uint64_t version) const {
  const auto oldest = std::min_element(versions_.begin(), versions_.end());
  if (oldest == versions_.end() || *oldest >= version) return SIZE_MAX;
  return static_cast<size_t>(oldest - versions_.begin());
}

void Checkpointer::Pump(const Layout& layout, ExtentStore* store, ImageStore* images,
                        uint64_t version, bool short_of_room, const Written& on_written) {
  while (writing_.size() < kWritingMax) {
    const bool initial = !initial_.empty();
    if (!initial && due_ == 0 && !short_of_room) return;
    const size_t index =
        initial ? static_cast<size_t>(std::find(owned_.begin(), owned_.end(), initial_.front()) -
                                      owned_.begin())
                : Oldest(version);
    if (index == SIZE_MAX) return;
    absl::StatusOr<BufferRef> buffer = pool_[0].Acquire();
    if (!buffer.ok()) return;  // The last owner has not let go yet; the next call tries again.
    if (initial) {
      initial_.pop_front();
      ++initial_writing_;
    } else {
      if (due_ > 0) --due_;
      short_of_room = false;  // One at a time, then look again.
    }
    versions_[index] = version;
    writing_.push_back(initial);
    images->WriteImage({.extent = owned_[index],
                        .version = version,
                        .data = buffer->data(),
                        .owner = buffer->ToShared(),
                        .chunk_crcs = CopyToImage(layout, store, owned_[index], buffer->data()),
                        .initial = initial},
                       on_written);
  }
}

void Checkpointer::OnWritten() {
  if (writing_.front()) --initial_writing_;
  writing_.pop_front();
}

}  // namespace ballast::server
