#include "common/tls/handshake.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/system/socket_address.h"
#include "common/text/address.h"
#include "common/text/names.h"
#include "common/tls/openssl_ptr.h"
#include "common/tls/pem.h"

namespace ballast {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A TCP connection that waits no longer than its deadline.
class TimedConnection {
 public:
  TimedConnection(const HostPort& to, SteadyClock::time_point deadline) : deadline_(deadline) {
    const auto found = FindAddresses(to.host, to.port, SocketUse::kConnect);
    if (!found.ok()) return;
    for (const SocketAddress& one : *found) {
      if (!open_) TryOpen(one);
    }
  }
  ~TimedConnection() { Close(); }
  TimedConnection(const TimedConnection&) = delete;
  TimedConnection& operator=(const TimedConnection&) = delete;

  bool open() const { return open_; }
  // The other end has closed the connection.
  bool ended() const { return ended_; }

  // False: the connection is over.
  bool Send(const char* bytes, size_t count) {
    while (count > 0) {
      const ssize_t sent = send(fd_, bytes, count, MSG_NOSIGNAL);
      if (sent > 0) {
        bytes += sent;
        count -= static_cast<size_t>(sent);
      } else if (errno != EINTR && (errno != EAGAIN || !Wait(POLLOUT))) {
        return false;
      }
    }
    return true;
  }

  // Bytes received; 0: none in time, or the connection is over.
  size_t Receive(char* bytes, size_t most) {
    while (Wait(POLLIN)) {
      const ssize_t got = recv(fd_, bytes, most, 0);
      if (got > 0) return static_cast<size_t>(got);
      ended_ = got == 0 || (errno != EINTR && errno != EAGAIN);
      if (ended_) return 0;
    }
    return 0;
  }

 private:
  void TryOpen(const SocketAddress& address) {
    Close();
    fd_ = BeginConnect(address);
    if (fd_ < 0 || !Wait(POLLOUT)) return;
    int error = 0;
    socklen_t bytes = sizeof(error);
    open_ = getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0;
  }

  bool Wait(short events) const {
    pollfd one = {fd_, events, 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - SteadyClock::now());
    return poll(&one, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) > 0;
  }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  const SteadyClock::time_point deadline_;
  int fd_ = -1;
  bool open_ = false;
  bool ended_ = false;
};

// TLS over a TimedConnection. The bytes pass through memory, because OpenSSL's own writes may raise
// SIGPIPE in another program's process.
class Handshake {
 public:
  Handshake(SSL_CTX* context, TimedConnection* connection)
      : ssl_(SSL_new(context)), connection_(connection) {
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_connect_state(ssl_.get());
  }

  SSL* ssl() { return ssl_.get(); }
  bool ended() const { return connection_->ended(); }

  // Repeats `step` of OpenSSL until it is done; false when it fails or nothing more comes.
  template <typename Step>
  bool Run(Step step) {
    while (true) {
      ERR_clear_error();
      const int result = step(ssl_.get());
      if (!Flush()) return false;
      if (result > 0) return true;
      if (SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ || !Fill()) return false;
    }
  }

 private:
  bool Flush() {
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(SSL_get_wbio(ssl_.get()), &bytes);
    if (count <= 0) return true;
    const bool sent = connection_->Send(bytes, static_cast<size_t>(count));
    BIO_reset(SSL_get_wbio(ssl_.get()));
    return sent;
  }

  bool Fill() {
    char bytes[16384];
    const size_t got = connection_->Receive(bytes, sizeof(bytes));
    if (got > 0) BIO_write(SSL_get_rbio(ssl_.get()), bytes, static_cast<int>(got));
    return got > 0;
  }

  const OpenSslPtr<SSL> ssl_;
  TimedConnection* const connection_;
};

// Files that cannot be read add nothing: the handshake then shows the missing ones.
void AddAuthorities(SSL_CTX* context, const TlsFile& ca) {
  const absl::StatusOr<Chain> authorities = ParseCertificates(ca);
  if (!authorities.ok()) return;
  for (const auto& one : *authorities) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get());
  }
}

void AddCertificate(SSL_CTX* context, const TlsFiles& files) {
  const absl::StatusOr<Chain> chain = ParseCertificates(files.certificate);
  const absl::StatusOr<OpenSslPtr<EVP_PKEY>> key = ParseKey(files.key);
  if (!chain.ok() || !key.ok()) return;
  SSL_CTX_use_certificate(context, chain->front().get());
  for (size_t i = 1; i < chain->size(); ++i) SSL_CTX_add1_chain_cert(context, (*chain)[i].get());
  SSL_CTX_use_PrivateKey(context, key->get());
}

OpenSslPtr<SSL_CTX> MakeContext(const HandshakeQuestion& question) {
  OpenSslPtr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  const unsigned char alpn[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), alpn, sizeof(alpn));
  if (!question.tls) return context;
  AddAuthorities(context.get(), question.files.ca);
  if (!question.files.key.text.empty()) AddCertificate(context.get(), question.files);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

void ExpectHost(SSL* ssl, const std::string& host) {
  if (IsIpAddress(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    return;
  }
  SSL_set_tlsext_host_name(ssl, host.c_str());
  SSL_set1_host(ssl, host.c_str());
}

// The fault of the server's certificate.
std::string OfServer(long verdict, const HandshakeQuestion& question, const std::string& host) {
  switch (verdict) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("the server's certificate is not for ", Quoted(host),
                          "; reach it under a name in the certificate, or add this one there");
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "the server's certificate, or its authority's, has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "the server's certificate is not valid yet; compare the clocks";
    case X509_V_ERR_INVALID_PURPOSE:
      return "the certificate that the server shows is not one of a server";
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return absl::StrCat("the server's certificate is not of an authority in ",
                          question.files.ca.path);
    default:
      return absl::StrCat("the server's certificate is refused: ",
                          X509_verify_cert_error_string(verdict));
  }
}

// The server's verdict on the certificate of this end.
std::string OfAlert(int reason, const HandshakeQuestion& question) {
  const std::string& own = question.files.certificate.path;
  switch (reason) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return absl::StrCat("the server does not know the authority of ", own);
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return absl::StrCat("the server says that ", own, " has expired");
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return absl::StrCat("the server does not accept ", own, " as that of a client");
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      if (!own.empty()) break;
      return "the server asks for a certificate; set BALLAST_TLS_CERT and BALLAST_TLS_KEY";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return "the port speaks no TLS; unset BALLAST_TLS_CA, or set security.mode: tls there";
    default:
      break;
  }
  return "";
}

// gRPC 1.51 closes the connection without an alert when it does not accept a client.
std::string OfSilence(const HandshakeQuestion& question) {
  const std::string& own = question.files.certificate.path;
  if (own.empty()) {
    return "the server closes the connection to an end without a certificate; set BALLAST_TLS_CERT "
           "and BALLAST_TLS_KEY";
  }
  return absl::StrCat("the server closes the connection once it has seen ", own,
                      ": its security.ca lacks the authority, or the two clocks differ");
}

std::string OfError(Handshake* handshake, const HandshakeQuestion& question,
                    const std::string& host) {
  const unsigned long error = ERR_peek_error();
  const std::string reason = TakeOpenSslReason();
  if (error == 0) return handshake->ended() ? OfSilence(question) : "";
  const long verdict = SSL_get_verify_result(handshake->ssl());
  if (verdict != X509_V_OK) return OfServer(verdict, question, host);
  const std::string known = OfAlert(ERR_GET_REASON(error), question);
  return known.empty() ? absl::StrCat("the TLS handshake failed: ", reason) : known;
}

int ReadOne(SSL* ssl) {
  char byte = 0;
  return SSL_read(ssl, &byte, 1);
}

}  // namespace

std::string ExplainHandshake(const HandshakeQuestion& question) {
  const absl::StatusOr<HostPort> to = ParseHostPort(question.address);
  if (!to.ok()) return "";
  TimedConnection connection(*to, SteadyClock::now() + question.timeout);
  if (!connection.open()) return "";
  const OpenSslPtr<SSL_CTX> context = MakeContext(question);
  Handshake handshake(context.get(), &connection);
  if (question.tls) ExpectHost(handshake.ssl(), to->host);
  const bool greeted = handshake.Run(SSL_do_handshake);
  if (!question.tls) {
    const int reason = ERR_GET_REASON(ERR_peek_error());
    const bool plain = reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
                       reason == SSL_R_PACKET_LENGTH_TOO_LONG;
    const bool speaks_tls = greeted || (ERR_peek_error() != 0 && !plain);
    ERR_clear_error();
    if (!speaks_tls) return "";
    return "the port speaks TLS; set BALLAST_TLS_CA, and BALLAST_TLS_CERT with BALLAST_TLS_KEY";
  }
  if (!greeted) return OfError(&handshake, question, to->host);
  // With TLS 1.3 the server judges this end's certificate after the handshake.
  if (handshake.Run(ReadOne)) return "";
  return OfError(&handshake, question, to->host);
}

}  // namespace ballast
