// The newest revision that a store has promised, in a small file next to the store's own files.
// RocksDB's recovery stops at the first damaged record of its log and drops the rest, because it
// cannot tell a torn tail from a damaged middle. The mark can: it is written after each commit, so
// a store that comes back with an older revision has lost something. The write is not synced: after
// power loss the mark may be old or gone, never ahead of the store.
// Layout: magic "BLMC" | crc32c u32 of the rest | revision u64, little-endian, 16 bytes.
// Comes from: rocksdb_store. Goes to: POSIX. Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace ballast::server {

// Name of the file in the store's directory.
inline constexpr char kCommittedMarkName[] = "committed.mark";

class CommittedMark {
 public:
  // The revision in the file at `path`; nullopt when there is no whole mark, which proves nothing.
  static std::optional<uint64_t> Read(const std::string& path);

  // Opens the file at `path` for Advance, creating it if missing. UNAVAILABLE with the reason.
  static absl::StatusOr<CommittedMark> Open(const std::string& path);

  CommittedMark(CommittedMark&& other) noexcept;
  CommittedMark& operator=(CommittedMark&&) = delete;
  ~CommittedMark();

  // Writes `revision`. A failure is ignored: the mark then only detects less.
  void Advance(uint64_t revision);

 private:
  explicit CommittedMark(int file) : file_(file) {}

  int file_;  // -1 when moved from
};

}  // namespace ballast::server
