#include "server/extents/part_checksums.h"

#include <iterator>

#include "common/bytes/crc32c.h"
#include "common/faults/mutant.h"

namespace ballast::server {

void PartChecksums::Put(uint64_t offset, uint64_t bytes, uint32_t crc32c) {
  // The first part that ends after `offset`, and all that begin before the new one's end.
  auto it = parts_.upper_bound(offset);
  if (it != parts_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second.bytes > offset) it = before;
  }
  if (BALLAST_MUTANT(kKeepFirstChecksum) && it != parts_.end() && it->first == offset) return;
  while (it != parts_.end() && it->first < offset + bytes) it = parts_.erase(it);
  parts_[offset] = {bytes, crc32c};
}

std::optional<uint32_t> PartChecksums::Whole(uint64_t bytes) const {
  uint64_t end = 0;
  uint32_t crc = 0;  // Of no bytes.
  for (const auto& [offset, part] : parts_) {
    if (offset != end) return std::nullopt;
    crc = BALLAST_MUTANT(kJoinBackwards) ? Crc32cJoin(part.crc32c, crc, end)
                                         : Crc32cJoin(crc, part.crc32c, part.bytes);
    end += part.bytes;
  }
  if (end != bytes) return std::nullopt;
  return crc;
}

}  // namespace ballast::server
