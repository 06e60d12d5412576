// The result of a TLS handshake with a server. gRPC 1.51 tells a client of every refusal "Socket
// closed", so the client asks again itself, with a connection of its own.
// Comes from: ChannelFactory, after failed calls. Goes to: OpenSSL, the network.
// Thread safety: any thread; a call blocks until it has an answer or the time is over.
#pragma once

#include <chrono>
#include <string>

#include "common/tls/tls_files.h"

namespace ballast {

struct HandshakeQuestion {
  std::string address;  // "host:port"
  bool tls = false;     // whether this end speaks TLS there, with `files`
  TlsFiles files;
  std::chrono::milliseconds timeout{2000};
};

// Why the two ends do not come together, as a clause for people: an authority that one of them does
// not know, an expired certificate, a wrong server name, a missing certificate, TLS at one end
// only. "" when the handshake succeeds, or when there is nothing to say about TLS: no answer comes,
// or none in time.
std::string ExplainHandshake(const HandshakeQuestion& question);

}  // namespace ballast
