// Owning pointers to OpenSSL's objects, and its newest error as text.
// Comes from: certificate.cc, handshake.cc, tests. Goes to: OpenSSL. Thread safety: as unique_ptr;
// OpenSSL keeps errors per thread.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace ballast {

struct OpenSslFree {
  void operator()(BIO* object) const { BIO_free_all(object); }
  void operator()(EVP_PKEY* object) const { EVP_PKEY_free(object); }
  void operator()(X509* object) const { X509_free(object); }
  void operator()(X509_STORE* object) const { X509_STORE_free(object); }
  void operator()(X509_STORE_CTX* object) const { X509_STORE_CTX_free(object); }
  void operator()(STACK_OF(X509) * object) const { sk_X509_free(object); }
  void operator()(GENERAL_NAMES* object) const { GENERAL_NAMES_free(object); }
  void operator()(SSL_CTX* object) const { SSL_CTX_free(object); }
  void operator()(SSL* object) const { SSL_free(object); }
};

template <typename Object>
using OpenSslPtr = std::unique_ptr<Object, OpenSslFree>;

// The reason of the oldest error of this thread, in OpenSSL's words; clears all of them.
inline std::string TakeOpenSslReason() {
  const unsigned long code = ERR_get_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

}  // namespace ballast
