// Where the snapshots and exports of each tenant lie below one root.
//
//   <root>              of the tenant "default", as before there were tenants
//   <root>/@<tenant>    of any other; no snapshot and no export has a name with '@'
//
// Comes from: SnapshotStore, Exports. Goes to: FileSystem. Thread safety: as FileSystem.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file.h"

namespace ballast::server {

// `tenant` is a name (ValidateName).
std::string TenantDirectory(const std::string& root, const std::string& tenant);

// The tenants with a directory below `root`, and "default", which is the first. A missing root has
// the latter only; a directory that cannot be listed is logged and left out. Errors as
// FileSystem's. Blocks on the disk.
absl::StatusOr<std::vector<std::string>> TenantsBelow(FileSystem* fs, const std::string& root);

}  // namespace ballast::server
