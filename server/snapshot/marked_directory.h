// Directories marked with their owner before they become visible: those of snapshots and exports.
// Until then one is called ".<name>.<owner>", which its owner recognizes after a crash.
// Comes from: SnapshotStore, Exports. Goes to: FileSystem.
// Thread safety: as FileSystem; blocks on the disk.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/io/file.h"

namespace ballast::server {

// Name of `<root>/<name>` while it is incomplete.
std::string UnmarkedPath(const std::string& root, const std::string& name,
                         const std::string& owner);

// Gives the directory that `make` makes and marks at the path it gets the name `<root>/<name>`; the
// caller flushes `root`. Errors: those of `make` and of Rename; then nothing is left.
absl::Status MakeMarkedDirectory(FileSystem* fs, const std::string& root, const std::string& name,
                                 const std::string& owner,
                                 const std::function<absl::Status(const std::string& path)>& make);

// Removes `owner`'s remains of a crash below `root`, if `name`, of a file there, marks them.
absl::Status ClearUnmarked(FileSystem* fs, const std::string& root, const std::string& name,
                           const std::string& owner);

}  // namespace ballast::server
