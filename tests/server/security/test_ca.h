// A certificate authority of a test: makes certificates in memory, as good or as bad as a test
// needs them, and gRPC's credentials from them.
// Thread safety: thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "openssl/evp.h"
#include "openssl/x509.h"

namespace ballast::server {

// A certificate with its key, both as PEM.
struct Issued {
  std::string certificate;
  std::string key;
};

class TestCa {
 public:
  TestCa();

  struct Wish {
    std::vector<std::string> uris;  // among its subject alternative names
    bool expired = false;           // since yesterday
  };
  // Valid for localhost and 127.0.0.1.
  Issued Issue(const Wish& wish);
  // With one URI.
  Issued Issue(const std::string& uri) { return Issue(Wish{{uri}, false}); }

  // PEM.
  const std::string& certificate() const { return pem_; }

  // Of a server that verifies a client's certificate; `needed`: and refuses a client without one.
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(bool needed);
  // Of a client that trusts this authority; null: it shows no certificate.
  std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const Issued* client) const;

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

  static Key NewKey();
  // Not signed yet. `days`: from now; negative: it has expired.
  Certificate Blank(EVP_PKEY* key, const std::string& name, int days);

  long serial_ = 1;
  Key key_;
  Certificate certificate_;
  std::string pem_;
};

}  // namespace ballast::server
