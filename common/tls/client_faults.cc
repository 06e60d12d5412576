#include "common/tls/client_faults.h"

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include "common/base/check.h"

namespace ballast {
namespace {

// OpenSSL calls it for each freed SSL. `parent` is whole but for its extra data then.
void OnFreed(void* parent, void*, CRYPTO_EX_DATA*, int, long, void* sink) {
  const auto* const ssl = static_cast<const SSL*>(parent);
  if (!SSL_is_server(ssl)) return;
  const long verdict = SSL_get_verify_result(ssl);
  // Without a certificate, and before one has come, this is X509_V_OK.
  if (verdict == X509_V_OK) return;
  static_cast<ClientFaultSink*>(sink)->OnClientFault(ClientFaultOf(verdict));
}

}  // namespace

ClientFault ClientFaultOf(long verdict) {
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return ClientFault::kExpired;
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return ClientFault::kUnknownAuthority;
    default:
      return ClientFault::kOther;
  }
}

void WatchClientFaults(ClientFaultSink* sink) {
  BALLAST_CHECK(SSL_get_ex_new_index(0, sink, nullptr, nullptr, OnFreed) >= 0);
}

}  // namespace ballast
