#include "common/tls/pem.h"

#include <openssl/pem.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr size_t kCertificatesMax = 256;

OpenSslPtr<BIO> Reader(const std::string& text) {
  return OpenSslPtr<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// No file asks for a password: the process has no terminal.
int NoPassword(char*, int, int, void*) { return 0; }

}  // namespace

absl::Status BadTlsFile(const TlsFile& file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path, ": ", what));
}

absl::StatusOr<Chain> ParseCertificates(const TlsFile& file) {
  ERR_clear_error();
  const OpenSslPtr<BIO> reader = Reader(file.text);
  Chain chain;
  while (X509* next = PEM_read_bio_X509(reader.get(), nullptr, NoPassword, nullptr)) {
    chain.emplace_back(next);
    if (chain.size() > kCertificatesMax) {
      return BadTlsFile(file, absl::StrCat("more than ", kCertificatesMax, " certificates"));
    }
  }
  const unsigned long end = ERR_peek_last_error();
  const bool at_end = ERR_GET_REASON(end) == PEM_R_NO_START_LINE;
  if (!at_end) return BadTlsFile(file, absl::StrCat("damaged certificate: ", TakeOpenSslReason()));
  ERR_clear_error();
  if (chain.empty()) return BadTlsFile(file, "holds no certificate in PEM form");
  return chain;
}

absl::StatusOr<OpenSslPtr<EVP_PKEY>> ParseKey(const TlsFile& file) {
  ERR_clear_error();
  const OpenSslPtr<BIO> reader = Reader(file.text);
  OpenSslPtr<EVP_PKEY> key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassword, nullptr));
  if (key != nullptr) return key;
  ERR_clear_error();
  return BadTlsFile(file, "holds no private key in PEM form without a password");
}

}  // namespace ballast
