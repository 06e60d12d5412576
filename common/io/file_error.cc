#include "common/io/file_error.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Of a file that may not grow: which limit stops it, if the process has one.
std::string SizeLimit() {
  const std::optional<uint64_t> limit = FileBytesMax();
  if (!limit.has_value()) return "; this file system holds no file so large: choose another one";
  return absl::StrCat("; the process that writes it may make files of ", *limit,
                      " bytes at most (RLIMIT_FSIZE, ulimit -f): raise that where it is started");
}

std::string NextStep(int error) {
  if (error == EFBIG) return SizeLimit();
  switch (CodeOf(error)) {
    case absl::StatusCode::kPermissionDenied:
      return "; give this user the right, or choose another directory";
    case absl::StatusCode::kResourceExhausted:
      return "; free space on this file system or raise the quota";
    default:
      return error == EIO ? "; the device failed, do not trust this file any more" : "";
  }
}

absl::Status ErrorOf(absl::StatusCode code, int error, absl::string_view operation,
                     absl::string_view path) {
  return absl::Status(code, absl::StrCat("cannot ", operation, " ", path, ": ",
                                         std::strerror(error), NextStep(error)));
}

}  // namespace

std::optional<uint64_t> FileBytesMax() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

bool CannotLink(int error) {
  switch (error) {
    case EXDEV:
    case EPERM:
    case EOPNOTSUPP:
    case ENOSYS:
    case EMLINK:
      return true;
    default:
      return false;
  }
}

absl::Status FileError(int error, absl::string_view operation, absl::string_view path) {
  return ErrorOf(CodeOf(error), error, operation, path);
}

absl::Status FileReadError(int error, absl::string_view operation, absl::string_view path) {
  return ErrorOf(error == EIO ? absl::StatusCode::kDataLoss : CodeOf(error), error, operation,
                 path);
}

}  // namespace ballast
