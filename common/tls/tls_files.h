// The files of one end of TLS connections: where they are, and their text as it was read. Only the
// form of the files is checked here: that each exists, is no larger than a certificate can be, and
// that only its owner can read a secret one. Comes from: configuration, TlsLoader. Goes to:
// certificate.h. Thread safety: plain values; pure but for the reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

// Larger files are no certificates.
inline constexpr size_t kTlsFileBytesMax = 1 << 20;

struct TlsPaths {
  std::string ca;           // authorities whose certificates count
  std::string certificate;  // of this end, followed by those up to the authority
  std::string key;          // of the certificate

  bool empty() const { return ca.empty() && certificate.empty() && key.empty(); }
};

struct TlsFile {
  std::string path;  // for messages
  std::string text;
};

// A client without a certificate has neither `certificate` nor `key`.
struct TlsFiles {
  TlsFile ca;
  TlsFile certificate;
  TlsFile key;
};

// The whole text of a file. `secret`: it must be of mode 0600 or less; 0640 where root owns it, as
// Kubernetes mounts secrets. Errors, all with the path: NOT_FOUND; PERMISSION_DENIED when it cannot
// be read or others may read it; INVALID_ARGUMENT for anything but a file, or too large a one.
absl::StatusOr<std::string> ReadTlsFile(const std::string& path, bool secret);

// All files that `paths` names. Errors: those of ReadTlsFile; INVALID_ARGUMENT when the authorities
// or one half of a pair are missing. `labels` names the settings in messages, as in "security.key".
absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths, const TlsPaths& labels);

// The secret in a file of one line, which may end with a line feed. Errors: those of ReadTlsFile;
// INVALID_ARGUMENT when it is empty, too long, or has bytes that no header may carry.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// Which files are there now: two results differ when a file was replaced or written in between.
std::string SignatureOf(const TlsPaths& paths);

}  // namespace ballast
