// Hears of handshakes that fail at the gRPC port. gRPC 1.51 tells its server nothing of them: their
// causes stand in gRPC's log, and in what OpenSSL keeps of a connection. Both are process-wide.
// Comes from: main. Goes to: HandshakeFailures. Thread safety: WatchHandshakes once, from main,
// before gRPC is used; Handshakes from any thread.
#pragma once

#include "server/net/handshake_failures.h"

namespace ballast::server {

// Those of this process; 0 of each cause until WatchHandshakes was called.
HandshakeFailures& Handshakes();

// Counts failed handshakes from now on. Takes gRPC's log over: its lines of at least `verbosity`,
// as GRPC_VERBOSITY has it ("DEBUG", "INFO" or "ERROR", in any case), go to stderr with severity,
// file and line, but without the time and the thread that gRPC itself writes; others go nowhere.
// Any other text, null included: none.
void WatchHandshakes(const char* verbosity);

}  // namespace ballast::server
