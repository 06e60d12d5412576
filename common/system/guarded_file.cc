#include "common/system/guarded_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace ballast {
namespace {

absl::Status CannotRead(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": cannot be read: ", std::strerror(error));
  return error == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
}

// Mode bits that a file must not have, the access they grant to others, and a mode without them.
struct ModeRule {
  mode_t forbidden = 0;
  const char* lets = "";
  mode_t instead = 0;
};

ModeRule ModeRuleOf(FileGuard guard, uid_t owner) {
  constexpr mode_t kWriters = S_IWGRP | S_IWOTH;
  switch (guard) {
    case FileGuard::kNone:
      return {};
    case FileGuard::kWrite:
      return {kWriters, "write this file", 0644};
    case FileGuard::kOthers:
      return {kWriters | S_IROTH, "read or write this file", 0640};
    case FileGuard::kSecret:
      break;
  }
  const mode_t allowed = S_IRWXU | (owner == 0 ? S_IRGRP : 0);
  return {static_cast<mode_t>(0777 & ~allowed), "read or write this secret", 0600};
}

absl::Status CheckMode(const std::string& path, FileGuard guard, const struct stat& facts) {
  const ModeRule rule = ModeRuleOf(guard, facts.st_uid);
  const mode_t mode = facts.st_mode & 0777;
  if ((mode & rule.forbidden) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s: has mode %04o, so others may %s; chmod %04o it", path, mode, rule.lets, rule.instead));
}

absl::StatusOr<std::string> ReadAll(const std::string& path, int fd, size_t bytes_max) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotRead(path, errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than the limit of ", bytes_max, " bytes"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadGuardedFile(const std::string& path, FileGuard guard,
                                            size_t bytes_max) {
  // A FIFO does not hold its reader up.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return CannotRead(path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat facts = {};
  if (fstat(fd, &facts) != 0) return CannotRead(path, errno);
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
  }
  BALLAST_RETURN_IF_ERROR(CheckMode(path, guard, facts));
  return ReadAll(path, fd, bytes_max);
}

std::string FileSignature(const std::string& path) {
  struct stat facts = {};
  if (path.empty() || stat(path.c_str(), &facts) != 0) return "-";
  return absl::StrCat(facts.st_dev, ":", facts.st_ino, ":", facts.st_size, ":",
                      facts.st_mtim.tv_sec, ".", facts.st_mtim.tv_nsec, ":", facts.st_ctim.tv_sec,
                      ".", facts.st_ctim.tv_nsec);
}

}  // namespace ballast
