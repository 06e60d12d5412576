// The content of certificates, and whether one end may use them: parsing and verdicts over bytes
// and a time. Nothing here reads a file or a clock.
// Comes from: TlsLoader. Goes to: OpenSSL. Thread safety: pure functions.
// Source: RFC 5280 (certificates, chains), the SPIFFE X.509-SVID standard (one URI name).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/tls_files.h"

namespace ballast {

// Which end of a connection a certificate is for.
enum class TlsEnd { kServer, kClient };

struct TlsExpectation {
  TlsEnd end = TlsEnd::kClient;
  // The one URI name that the certificate must carry; empty: it is not looked at.
  std::string uri;
};

// Of the certificate in use and those after it.
struct CertificateFacts {
  std::string subject;            // "CN=server-0"; empty without a certificate
  std::vector<std::string> uris;  // in the order of the certificate
  int64_t not_before_s = 0;       // since 1970, UTC: the latest beginning of the chain
  int64_t not_after_s = 0;        // the earliest end of the chain
  int64_t ca_not_after_s = 0;     // the earliest end among the authorities
  int authorities = 0;
};

// Whether `files` can be used at `now_s` (seconds since 1970, UTC): all is PEM, the key is that of
// the certificate, the chain leads to one of the authorities, for that end of a connection, and is
// valid now, and the names are as expected. Errors begin with the file's path:
//   INVALID_ARGUMENT     the file's content can never be used here
//   FAILED_PRECONDITION  it cannot be used now: not valid yet, or any more
absl::StatusOr<CertificateFacts> CheckTlsFiles(const TlsFiles& files,
                                               const TlsExpectation& expected, int64_t now_s);

// "2026-11-25 18:58:11 UTC".
std::string UtcText(int64_t seconds);

}  // namespace ballast
