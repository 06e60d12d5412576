// SyncPathTo: makes a directory durable, with all new names on its path.
// Comes from: the code that makes the directory in which all of its files lie. Goes to: FileSystem.
// Thread safety: as FileSystem; blocks on the disk.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/io/file.h"

namespace ballast {

// Returns when every name on the way to `path` survives power loss, whether made by this process or
// by an earlier one that ended too soon. Errors: those of SyncDirectory for the directory that
// holds `path`. A parent further up that this user may not open, or whose file system flushes no
// directories, holds no name that this user's process has made, and is left out.
absl::Status SyncPathTo(FileSystem* fs, const std::string& path);

// Makes `path` and its missing parents, all of which survive power loss when this returns. It may
// exist, also where others have made it: then its parent may be one that this user may not open.
// Errors as FileSystem's.
absl::Status MakeLastingDirectory(FileSystem* fs, const std::string& path);

}  // namespace ballast
