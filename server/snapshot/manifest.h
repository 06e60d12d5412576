// Manifest of a snapshot: its description, as bytes. A snapshot exists once this file does.
// docs/formats/snapshot.md has the layout.
// Comes from: SnapshotStore. Goes to: the file MANIFEST. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/qualified_name.h"
#include "server/durability/records/records.h"

namespace ballast::server {

// Of names; longer or other ones are refused.
inline constexpr size_t kSnapshotNameBytesMax = 64;
// Of a snapshot that an export takes of the present state: a name that CheckSnapshotName refuses,
// so no user has it, lists it or counts it. There may be several; they are told apart by their ids.
inline constexpr absl::string_view kPassingSnapshotName = ".export";
// Of a whole manifest: a plan and two records.
inline constexpr size_t kManifestBytesMax = size_t{256} << 20;

struct SnapshotManifest {
  uint64_t id = 0;
  std::string name;
  std::string tenant = kDefaultTenant;  // of the directory that it lies in; not in the file
  std::string job;                      // its name
  uint64_t created_s = 0;               // since 1970, UTC
  uint64_t round = 0;       // that the state starts: the first one of a job made from it
  uint64_t bytes = 0;       // of all parts
  std::string plan;         // as the server's plan codec writes it
  PreparedRecord prepared;  // the home's vote on the round before
  DecisionRecord decision;  // on that round
};

// A name is 1 to 64 letters, digits, '.', '_' and '-', and does not begin with '.' or '-'.
// INVALID_ARGUMENT BAD_ARGUMENT.
absl::Status CheckSnapshotName(absl::string_view name);

std::string EncodeManifest(const SnapshotManifest& manifest);
// The inverse. DATA_LOSS for anything that EncodeManifest cannot have produced, FAILED_PRECONDITION
// for a newer version.
absl::StatusOr<SnapshotManifest> DecodeManifest(absl::string_view bytes);

}  // namespace ballast::server
