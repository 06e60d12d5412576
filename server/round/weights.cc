#include "server/round/weights.h"

#include <map>
#include <set>

namespace ballast::server {
namespace {

constexpr size_t kAlignmentBytes = 64;

}  // namespace

Weights::Weights(const Layout& layout, const std::vector<uint32_t>& owned)
    : buffers_(layout.extents().size()) {
  // One set on its way out, one being written. Older sets were returned: no slot begins a round
  // before it has received all weights of the last one. The rest is out of the way of single
  // fetches.
  for (const uint32_t extent : owned) pools_.Allow(BufferBytes(layout, extent), 2);
  std::set<uint64_t> sizes;
  for (const uint32_t extent : owned) sizes.insert(BufferBytes(layout, extent));
  for (const uint64_t bytes : sizes) pools_.Allow(bytes, 8);
}

uint64_t Weights::BufferBytes(const Layout& layout, uint32_t extent) {
  const uint64_t width = DTypeBytes(layout.extents()[extent].dtype);
  return BufferPools::ClassOf(layout.ExtentWireBytes(extent), layout.extent_elements() * width,
                              kAlignmentBytes);
}

void Weights::Prepare(const Layout& layout, const std::vector<uint32_t>& owned) {
  std::map<uint64_t, size_t> buffers;  // by their size
  for (const uint32_t extent : owned) ++buffers[BufferBytes(layout, extent)];
  for (const auto& [bytes, count] : buffers) pools_.Prepare(bytes, count);
}

absl::StatusOr<BufferRef> Weights::Acquire(const Layout& layout, uint32_t extent) {
  return pools_.Acquire(BufferBytes(layout, extent));
}

}  // namespace ballast::server
