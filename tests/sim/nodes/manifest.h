// The manifest of a simulated server: the epoch record and the epoch it has sealed, replaced as a
// whole, with a checksum. It stands for JobStore's record in the metadata store.
// Comes from: SimServer. Goes to: SimDisk. Thread safety: pure functions over a disk.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "server/round/round_types.h"

namespace ballast::sim {

absl::Status SaveManifest(FileSystem* fs, const std::string& path, const server::JobPlan& plan);

// `base` with the epoch and seal of the file. Errors: DATA_LOSS when it is damaged.
absl::StatusOr<server::JobPlan> LoadManifest(FileSystem* fs, const std::string& path,
                                             const server::JobPlan& base);

}  // namespace ballast::sim
