#include "common/io/file_error.h"

#include <cerrno>
#include <cstring>

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
      return absl::StatusCode::kResourceExhausted;
    case EIO:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInternal;
  }
}

const char* NextStep(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kPermissionDenied:
      return "; give this user the right, or choose another directory";
    case absl::StatusCode::kResourceExhausted:
      return "; free space on this file system or raise the quota";
    case absl::StatusCode::kDataLoss:
      return "; the device failed, do not trust this file any more";
    default:
      return "";
  }
}

}  // namespace

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
  const absl::StatusCode code = CodeOf(error);
  return absl::Status(code, absl::StrCat("cannot ", operation, " ", path, ": ",
                                         std::strerror(error), NextStep(code)));
}

}  // namespace ballast
