// The credentials of a server's ports and of its calls to other servers, over files replaced while
// it runs: gRPC looks at them every second, and uses their content for the handshakes from then on.
// So only checked files may lie there (common/tls/staged_files.h).
// Comes from: the server. Goes to: gRPC's FileWatcherCertificateProvider.
// Thread safety: immutable after construction; any thread. Owns a thread of gRPC.
#pragma once

#include <memory>

#include "common/tls/tls_files.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"

namespace ballast {

class WatchedCredentials {
 public:
  // All three files exist.
  explicit WatchedCredentials(const TlsPaths& paths);

  // TLS 1.2 or newer. A client's certificate is asked for and checked against the authorities;
  // `certificate_required`: without one the handshake fails.
  std::shared_ptr<grpc::ServerCredentials> Server(bool certificate_required) const;
  // Shows the certificate, and wants one of the authorities, with the name of the connection.
  std::shared_ptr<grpc::ChannelCredentials> Channel() const;

 private:
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

}  // namespace ballast
