#include "server/security/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace ballast::server {
namespace {

constexpr size_t kFileBytesMax = 4 << 20;
// Mode bits that let others in.
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

absl::Status Bad(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Bad(path, std::strerror(errno));
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kFileBytesMax) {
      return Bad(path, absl::StrCat("the file is above the limit of ", kFileBytesMax, " bytes"));
    }
  }
}

// `forbidden`: mode bits that the file must not have.
absl::StatusOr<std::string> ReadGuarded(const std::string& path, mode_t forbidden) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Bad(path, std::strerror(errno));
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat facts = {};
  if (fstat(fd, &facts) != 0) return Bad(path, std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) return Bad(path, "it is not a file");
  if ((facts.st_mode & forbidden) != 0) {
    return Bad(path, absl::StrFormat("its mode %04o lets others in; chmod it to %04o or less",
                                     facts.st_mode & 07777u, 0777u & ~forbidden & 0666u));
  }
  return ReadAll(fd, path);
}

absl::Status ReadTokens(const std::string& path, const std::string& domain, TokenTable* tokens) {
  if (path.empty()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadGuarded(path, kOthersWrite | S_IROTH));
  BALLAST_ASSIGN_OR_RETURN(*tokens, TokenTable::Parse(text, path, domain));
  return absl::OkStatus();
}

absl::Status ReadDenied(const std::string& path, const std::string& domain,
                        DeniedIdentities* denied) {
  if (path.empty()) return absl::OkStatus();
  BALLAST_ASSIGN_OR_RETURN(const std::string text, ReadGuarded(path, kOthersWrite));
  BALLAST_ASSIGN_OR_RETURN(*denied, DeniedIdentities::Parse(text, path, domain));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadOwnedFile(const std::string& path) {
  return ReadGuarded(path, kOthersWrite);
}

absl::Status ReadGateFiles(const GatePaths& paths, const std::string& domain, GateFiles* files) {
  absl::Status tokens = ReadTokens(paths.tokens, domain, &files->tokens);
  absl::Status denied = ReadDenied(paths.denied, domain, &files->denied);
  if (tokens.ok()) return denied;
  if (denied.ok()) return tokens;
  return absl::InvalidArgumentError(absl::StrCat(tokens.message(), "\n", denied.message()));
}

}  // namespace ballast::server
