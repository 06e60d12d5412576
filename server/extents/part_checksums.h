// PartChecksums: the checksums of a register's bytes, part by part, as the code that put each part
// there computed them. Joined they are the checksum of the gradient that the log writes, so that
// the log need not read it; and a byte that changes in memory meanwhile does not fit it.
// Comes from: Contributions (frames and tiles of sums). Goes to: the same, for the log.
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace ballast::server {

class PartChecksums {
 public:
  // The bytes from `offset` on are new, `bytes` >= 1 of them, with that Crc32c. Parts that they
  // overwrite, wholly or in part, count as unknown.
  void Put(uint64_t offset, uint64_t bytes, uint32_t crc32c);
  // Crc32c of the first `bytes` bytes; nothing unless known parts cover exactly these.
  std::optional<uint32_t> Whole(uint64_t bytes) const;

 private:
  struct Part {
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
  };
  std::map<uint64_t, Part> parts_;  // by offset; they do not overlap
};

}  // namespace ballast::server
