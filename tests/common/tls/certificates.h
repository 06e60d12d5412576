// Certificates for tests, made in memory in microseconds: an authority that signs every request,
// even ones that no authority should sign.
// Comes from: tests. Goes to: OpenSSL. Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/tls/openssl_ptr.h"
#include "common/tls/tls_files.h"

namespace ballast {

// The time in a test's certificates, seconds since 1970. They are valid around the real time, too.
struct CertificateWish {
  std::string name = "server-0";
  std::vector<std::string> uris = {"spiffe://ballast/server/0"};
  std::vector<std::string> dns = {"localhost"};
  bool loopback = true;  // the address 127.0.0.1
  bool server = true;    // of extended key usage server and client; else client only
  int64_t not_before_s = 0;
  int64_t not_after_s = 4'000'000'000;
};

struct PemPair {
  std::string certificate;
  std::string key;
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "Test CA", int64_t not_after_s = 4'000'000'000);

  const std::string& pem() const { return pem_; }
  PemPair Sign(const CertificateWish& wish) const;
  // Sign's pair with this authority, as files of these paths.
  TlsFiles Files(const CertificateWish& wish = {}) const;

 private:
  OpenSslPtr<EVP_PKEY> key_;
  OpenSslPtr<X509> certificate_;
  std::string pem_;
};

// Writes a file of this mode; the test fails when that is not possible.
void WriteFile(const std::string& path, const std::string& text, unsigned mode = 0600);
// Writes all three files of `files` under their paths below `folder`; returns those paths.
TlsPaths WriteFiles(const std::string& folder, const TlsFiles& files);
// A new empty directory.
std::string MakeFolder();

}  // namespace ballast
