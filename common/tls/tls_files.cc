#include "common/tls/tls_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace ballast {
namespace {

constexpr size_t kTokenBytesMax = 4096;
constexpr size_t kTokenBytesMin = 16;

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

absl::Status CannotOpen(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": cannot be read: ", std::strerror(error));
  return error == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
}

absl::Status CheckSecret(const std::string& path, const struct stat& facts) {
  const mode_t allowed = facts.st_uid == 0 ? 0640 : 0600;
  const mode_t mode = facts.st_mode & 0777;
  if ((mode & ~(allowed | 0100)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "%s: has mode %04o, so others may read or write this secret; chmod 0600 it", path, mode));
}

absl::StatusOr<std::string> ReadAll(const std::string& path, int fd) {
  std::string text(kTlsFileBytesMax + 1, '\0');
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = read(fd, text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotOpen(path, errno);
    if (got == 0) break;
    bytes += static_cast<size_t>(got);
  }
  if (bytes > kTlsFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": larger than the limit of ", kTlsFileBytesMax, " bytes"));
  }
  text.resize(bytes);
  return text;
}

absl::Status Missing(const std::string& label, const std::string& beside) {
  return absl::InvalidArgumentError(
      absl::StrCat(label, " is missing beside ", beside, "; set both, or neither"));
}

void AddSignature(const std::string& path, std::string* signature) {
  struct stat facts = {};
  if (path.empty() || stat(path.c_str(), &facts) != 0) {
    absl::StrAppend(signature, "-;");
    return;
  }
  absl::StrAppend(signature, facts.st_dev, ":", facts.st_ino, ":", facts.st_size, ":",
                  facts.st_mtim.tv_sec, ".", facts.st_mtim.tv_nsec, ":", facts.st_ctim.tv_sec, ".",
                  facts.st_ctim.tv_nsec, ";");
}

}  // namespace

absl::StatusOr<std::string> ReadTlsFile(const std::string& path, bool secret) {
  const OpenFile file(path);
  if (file.fd() < 0) return CannotOpen(path, errno);
  struct stat facts = {};
  if (fstat(file.fd(), &facts) != 0) return CannotOpen(path, errno);
  if (!S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
  }
  if (secret) BALLAST_RETURN_IF_ERROR(CheckSecret(path, facts));
  return ReadAll(path, file.fd());
}

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths, const TlsPaths& labels) {
  TlsFiles files{{paths.ca, ""}, {paths.certificate, ""}, {paths.key, ""}};
  if (paths.ca.empty()) {
    return Missing(labels.ca, paths.certificate.empty() ? labels.key : labels.certificate);
  }
  if (paths.certificate.empty() && !paths.key.empty()) {
    return Missing(labels.certificate, labels.key);
  }
  if (paths.key.empty() && !paths.certificate.empty()) {
    return Missing(labels.key, labels.certificate);
  }
  BALLAST_ASSIGN_OR_RETURN(files.ca.text, ReadTlsFile(paths.ca, false));
  if (paths.key.empty()) return files;
  BALLAST_ASSIGN_OR_RETURN(files.certificate.text, ReadTlsFile(paths.certificate, false));
  BALLAST_ASSIGN_OR_RETURN(files.key.text, ReadTlsFile(paths.key, true));
  return files;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  BALLAST_ASSIGN_OR_RETURN(std::string token, ReadTlsFile(path, true));
  if (!token.empty() && token.back() == '\n') token.pop_back();
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the token has ", token.size(),
                                                   " bytes; it must have ", kTokenBytesMin, " to ",
                                                   kTokenBytesMax));
  }
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (printable) return token;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": a token is one line of printable ASCII without blanks"));
}

std::string SignatureOf(const TlsPaths& paths) {
  std::string signature;
  for (const std::string* path : {&paths.ca, &paths.certificate, &paths.key}) {
    AddSignature(*path, &signature);
  }
  return signature;
}

}  // namespace ballast
