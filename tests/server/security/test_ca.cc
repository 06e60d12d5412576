#include "tests/server/security/test_ca.h"

#include <ctime>

namespace ballast::server {
namespace {

constexpr int64_t kDayS = 24 * 3600;

}  // namespace

PemPair TestCa::Issue(const Wish& wish) const {
  CertificateWish certificate;
  certificate.uris = wish.uris;
  if (wish.expired) certificate.not_after_s = static_cast<int64_t>(std::time(nullptr)) - kDayS;
  return authority_.Sign(certificate);
}

std::shared_ptr<grpc::ServerCredentials> TestCa::ServerCredentials(bool needed) const {
  grpc::SslServerCredentialsOptions options(
      needed ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
             : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = authority_.pem();
  const PemPair own = Issue("spiffe://test/server/1");
  options.pem_key_cert_pairs.push_back({own.key, own.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TestCa::ClientCredentials(const PemPair* client) const {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = authority_.pem();
  if (client != nullptr) {
    options.pem_private_key = client->key;
    options.pem_cert_chain = client->certificate;
  }
  return grpc::SslCredentials(options);
}

}  // namespace ballast::server
