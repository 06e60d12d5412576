// The frame of small files, read as a whole or not at all:
//   magic (8) | version u32 | 0 u32 | length of all u64 | body | CRC32C of everything in front u32
// Comes from: ImageBase, SnapshotManifest. Goes to: docs/formats/images.md and snapshot.md.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast::server {

// `magic` has 8 bytes.
std::string SealBytes(absl::string_view magic, uint32_t version, absl::string_view body);
// The body, which points into `bytes`. Errors: DATA_LOSS for anything that SealBytes cannot have
// made, with the message `otherwise` for bytes that do not begin with `magic` or are too few;
// FAILED_PRECONDITION for a newer version.
absl::StatusOr<absl::string_view> OpenSealed(absl::string_view magic, uint32_t version,
                                             absl::string_view bytes, absl::string_view otherwise);

}  // namespace ballast::server
