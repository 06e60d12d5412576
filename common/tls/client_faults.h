// What OpenSSL found wrong with the certificates that clients have shown to this process. gRPC 1.51
// knows the verdict and tells nothing of it, so it is read from each connection of TLS at its end.
// Comes from: OpenSSL. Goes to: server/rpc/handshake_watch.
// Thread safety: WatchClientFaults once, before the first connection; the rest is pure.
#pragma once

namespace ballast {

enum class ClientFault {
  kUnknownAuthority,
  kExpired,  // the certificate, or one of its authorities
  kOther,    // not valid yet, not one of a client, a broken signature and so on
};

// `verdict`: an X509_V_ERR_* of OpenSSL.
ClientFault ClientFaultOf(long verdict);

class ClientFaultSink {
 public:
  virtual ~ClientFaultSink() = default;
  // A connection has ended whose client showed a certificate at fault. Called on any thread, and
  // must not block.
  virtual void OnClientFault(ClientFault fault) = 0;
};

// From now on `sink` hears of every server-side TLS connection of this process. For programs: it
// cannot be undone, so `sink` lives until the process ends.
void WatchClientFaults(ClientFaultSink* sink);

}  // namespace ballast
