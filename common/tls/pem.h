// Certificates and keys in PEM form, as OpenSSL's objects.
// Comes from: tls_files.h. Goes to: certificate.cc, which judges them, and handshake.cc, which uses
// them. Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tls/openssl_ptr.h"
#include "common/tls/tls_files.h"

namespace ballast {

// The certificate of one end, followed by those up to its authority; or authorities.
using Chain = std::vector<OpenSslPtr<X509>>;

// INVALID_ARGUMENT "path: what".
absl::Status BadTlsFile(const TlsFile& file, absl::string_view what);

// All certificates of a file, in its order; at least one and at most 256. Errors: as BadTlsFile.
absl::StatusOr<Chain> ParseCertificates(const TlsFile& file);

// The private key of a file. Errors: as BadTlsFile, also for a key with a password.
absl::StatusOr<OpenSslPtr<EVP_PKEY>> ParseKey(const TlsFile& file);

}  // namespace ballast
