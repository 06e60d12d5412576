#include "common/tls/tls_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/system/guarded_file.h"

namespace ballast {
namespace {

constexpr size_t kTokenBytesMax = 4096;
constexpr size_t kTokenBytesMin = 16;

absl::Status Missing(const std::string& label, const std::string& beside) {
  return absl::InvalidArgumentError(
      absl::StrCat(label, " is missing beside ", beside, "; set both, or neither"));
}

}  // namespace

absl::StatusOr<std::string> ReadTlsFile(const std::string& path, bool secret) {
  return ReadGuardedFile(path, secret ? FileGuard::kSecret : FileGuard::kNone, kTlsFileBytesMax);
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
  return absl::StrCat(FileSignature(paths.ca), ";", FileSignature(paths.certificate), ";",
                      FileSignature(paths.key));
}

}  // namespace ballast
