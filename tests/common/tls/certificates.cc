#include "tests/common/tls/certificates.h"

#include <openssl/pem.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ballast {
namespace {

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "test certificates: %s\n", what);
  std::abort();
}

OpenSslPtr<EVP_PKEY> NewKey() {
  OpenSslPtr<EVP_PKEY> key(EVP_EC_gen("P-256"));
  Check(key != nullptr, "no key");
  return key;
}

template <typename Write>
std::string Pem(Write write) {
  const OpenSslPtr<BIO> text(BIO_new(BIO_s_mem()));
  Check(write(text.get()) == 1, "no PEM");
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(text.get(), &bytes);
  return std::string(bytes, static_cast<size_t>(count));
}

std::string PemOf(X509* certificate) {
  return Pem([certificate](BIO* to) { return PEM_write_bio_X509(to, certificate); });
}

void Extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  Check(extension != nullptr, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

OpenSslPtr<X509> NewCertificate(const std::string& name, EVP_PKEY* key, int64_t not_before_s,
                                int64_t not_after_s) {
  static long serial = 0;
  OpenSslPtr<X509> certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), not_before_s);
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), not_after_s);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

std::string SanOf(const CertificateWish& wish) {
  std::string names;
  const auto add = [&names](const std::string& name) {
    names += (names.empty() ? "" : ",") + name;
  };
  for (const std::string& uri : wish.uris) add("URI:" + uri);
  for (const std::string& host : wish.dns) add("DNS:" + host);
  if (wish.loopback) add("IP:127.0.0.1");
  return names;
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name, int64_t not_after_s)
    : key_(NewKey()), certificate_(NewCertificate(name, key_.get(), 0, not_after_s)) {
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  Extend(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:true");
  Extend(certificate_.get(), certificate_.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  Check(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0, "not signed");
  pem_ = PemOf(certificate_.get());
}

PemPair TestAuthority::Sign(const CertificateWish& wish) const {
  const OpenSslPtr<EVP_PKEY> key = NewKey();
  const OpenSslPtr<X509> made =
      NewCertificate(wish.name, key.get(), wish.not_before_s, wish.not_after_s);
  X509_set_issuer_name(made.get(), X509_get_subject_name(certificate_.get()));
  Extend(made.get(), certificate_.get(), NID_basic_constraints, "critical,CA:false");
  Extend(made.get(), certificate_.get(), NID_ext_key_usage,
         wish.server ? "serverAuth,clientAuth" : "clientAuth");
  if (const std::string names = SanOf(wish); !names.empty()) {
    Extend(made.get(), certificate_.get(), NID_subject_alt_name, names);
  }
  Check(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0, "not signed");
  return {PemOf(made.get()), Pem([&key](BIO* to) {
            return PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

TlsFiles TestAuthority::Files(const CertificateWish& wish) const {
  const PemPair pair = Sign(wish);
  return {{"ca.pem", pem_}, {"tls.pem", pair.certificate}, {"tls.key", pair.key}};
}

void WriteFile(const std::string& path, const std::string& text, unsigned mode) {
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  Check(file.good() && chmod(path.c_str(), mode) == 0, path.c_str());
}

TlsPaths WriteFiles(const std::string& folder, const TlsFiles& files) {
  const TlsPaths paths{folder + "/" + files.ca.path, folder + "/" + files.certificate.path,
                       folder + "/" + files.key.path};
  WriteFile(paths.ca, files.ca.text);
  WriteFile(paths.certificate, files.certificate.text);
  WriteFile(paths.key, files.key.text);
  return paths;
}

std::string MakeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "ballast-tls-test-XXXXXX").string();
  Check(mkdtemp(path.data()) != nullptr, path.c_str());
  return path;
}

}  // namespace ballast
