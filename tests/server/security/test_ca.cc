#include "tests/server/security/test_ca.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "openssl/bio.h"
#include "openssl/ec.h"
#include "openssl/pem.h"
#include "openssl/x509v3.h"

namespace ballast::server {
namespace {

constexpr long kDayS = 24 * 3600;

template <typename Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  BALLAST_CHECK(write(bio.get()) == 1);
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(length));
}

std::string PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
  BALLAST_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

TestCa::TestCa() : key_(NewKey()), certificate_(Blank(key_.get(), "test authority", 1)) {
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate_.get(), certificate_.get(), NID_key_usage,
               "critical,keyCertSign,cRLSign");
  BALLAST_CHECK(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
  pem_ = PemOf(certificate_.get());
}

TestCa::Key TestCa::NewKey() { return Key(EVP_EC_gen("P-256"), &EVP_PKEY_free); }

TestCa::Certificate TestCa::Blank(EVP_PKEY* key, const std::string& name, int days) {
  Certificate certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial_++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -30 * kDayS);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), days * kDayS);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

Issued TestCa::Issue(const Wish& wish) {
  const Key key = NewKey();
  const Certificate certificate = Blank(key.get(), "test", wish.expired ? -1 : 1);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  std::string names = "DNS:localhost,IP:127.0.0.1";
  for (const std::string& uri : wish.uris) absl::StrAppend(&names, ",URI:", uri);
  AddExtension(certificate.get(), certificate_.get(), NID_subject_alt_name, names);
  BALLAST_CHECK(X509_sign(certificate.get(), key_.get(), EVP_sha256()) > 0);
  return {PemOf(certificate.get()), Pem([&](BIO* bio) {
            return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr,
                                                 nullptr);
          })};
}

std::shared_ptr<grpc::ServerCredentials> TestCa::ServerCredentials(bool needed) {
  grpc::SslServerCredentialsOptions options(
      needed ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
             : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem_;
  const Issued own = Issue("spiffe://test/server/1");
  options.pem_key_cert_pairs.push_back({own.key, own.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TestCa::ClientCredentials(const Issued* client) const {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pem_;
  if (client != nullptr) {
    options.pem_private_key = client->key;
    options.pem_cert_chain = client->certificate;
  }
  return grpc::SslCredentials(options);
}

}  // namespace ballast::server
