#include "proto/convert/credentials.h"

#include "grpcpp/security/tls_credentials_options.h"

namespace ballast {
namespace {

constexpr unsigned int kLookEveryS = 1;

}  // namespace

WatchedCredentials::WatchedCredentials(const TlsPaths& paths)
    : provider_(std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          paths.key, paths.certificate, paths.ca, kLookEveryS)) {}

std::shared_ptr<grpc::ServerCredentials> WatchedCredentials::Server(
    bool certificate_required) const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(certificate_required
                                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> WatchedCredentials::Channel() const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace ballast
