// The header that every stored value carries, so that a damaged or misplaced value is found when it
// is read. Format version 1, little-endian, 32 bytes before the value (docs/formats/meta.md):
//   0 magic "BLMV" | 4 crc32c u32 | 8 version u16 | 10 flags u16, 0 | 12 value bytes u32
//   16 create_revision u64 | 24 mod_revision u64 | 32 value
// The checksum runs over the key's length (u32), the key, and everything from offset 8 on. Magic,
// checksum and version keep their places in all versions.
// Comes from: rocksdb_store. Goes to: nothing. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/meta/meta_store.h"

namespace ballast::server {

inline constexpr uint16_t kMetaFormatVersion = 1;
inline constexpr size_t kMetaHeaderBytes = 32;

// The stored bytes of `entry`. Its value must be within kMetaValueBytesMax.
std::string EncodeMetaValue(const MetaEntry& entry);

// The entry whose stored bytes under `key` are `stored`. DATA_LOSS when they are cut off, changed,
// or were written for another key; FAILED_PRECONDITION when they are whole, but of a version that
// this release does not read. Messages name the key.
absl::StatusOr<MetaEntry> DecodeMetaValue(absl::string_view key, absl::string_view stored);

}  // namespace ballast::server
