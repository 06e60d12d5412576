#include "common/io/sync_path.h"

#include "common/base/status_macros.h"

namespace ballast {
namespace {

std::string ParentAt(const std::string& path, size_t slash) {
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The error for a directory in which this process cannot have made a name, or whose names need no
// flush.
bool NotOurs(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsInternal(status);
}

}  // namespace

absl::Status SyncPathTo(FileSystem* fs, const std::string& path) {
  size_t slash = path.rfind('/');
  BALLAST_RETURN_IF_ERROR(fs->SyncDirectory(ParentAt(path, slash)));
  while (slash != std::string::npos && slash != 0) {
    slash = path.rfind('/', slash - 1);
    const absl::Status status = fs->SyncDirectory(ParentAt(path, slash));
    if (!NotOurs(status)) BALLAST_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status MakeLastingDirectory(FileSystem* fs, const std::string& path) {
  BALLAST_RETURN_IF_ERROR(fs->MakeDirectory(path));
  const absl::Status synced = SyncPathTo(fs, path);
  return NotOurs(synced) ? absl::OkStatus() : synced;
}

}  // namespace ballast
