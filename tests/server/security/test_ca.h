// gRPC's credentials from a test's authority, for a server and for clients as good or as bad as a
// test needs them.
// Thread safety: thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "tests/common/tls/certificates.h"

namespace ballast::server {

class TestCa {
 public:
  struct Wish {
    std::vector<std::string> uris;  // among its subject alternative names
    bool expired = false;           // since yesterday
  };
  // Valid for localhost and 127.0.0.1.
  PemPair Issue(const Wish& wish) const;
  // With one URI.
  PemPair Issue(const std::string& uri) const { return Issue(Wish{{uri}, false}); }

  // Of a server that verifies a client's certificate; `needed`: and refuses a client without one.
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(bool needed) const;
  // Of a client that trusts this authority; null: it shows no certificate.
  std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const PemPair* client) const;

 private:
  TestAuthority authority_;
};

}  // namespace ballast::server
