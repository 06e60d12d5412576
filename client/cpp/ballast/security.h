// A client's credentials, and the authorities it trusts servers by.
// Comes from: JobOptions, AdminOptions. Goes to: every connection. C++17-clean. Thread safety: a
// plain value.
#pragma once

#include <string>
#include <vector>

namespace ballast::client {

// PEM files, for servers with `security.mode: tls`. All empty: plaintext, without authentication.
// The files are read when the client starts, and again for a new connection when they have changed;
// the last good contents stay in use while they cannot be read.
struct Security {
  std::string ca;           // authorities whose servers are trusted; over TLS always needed
  std::string certificate;  // the client's own, followed by those up to the authority
  std::string key;          // of the certificate; of mode 0600
  // One line with a bearer token, for a client without a certificate; of mode 0600.
  std::string token_file;
};

// Which servers, and how connections to them are secured.
struct Servers {
  std::vector<std::string> endpoints;  // any subset of the servers, "host:port"
  Security security;
};

}  // namespace ballast::client
