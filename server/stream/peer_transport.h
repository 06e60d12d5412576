// A server's calls to the other servers, without their transport: a request of raw bytes, and one
// answer. gRPC is one transport (server/rpc/grpc_peer_transport.h), the simulator's network
// another. tests/server/stream/peer_transport_conformance.h specifies every transport.
// Comes from: PeerCaller. Goes to: the port of another server, as a MessageStream there.
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/bytes/payload.h"

namespace ballast::server {

// Options of a call in addition to its request.
struct PeerCallOptions {
  const char* method = nullptr;  // as in proto/convert/methods.h
  std::chrono::nanoseconds timeout{0};
  bool wait_for_ready = false;  // wait for a connection instead of failing at once
  // The value of the header kPeerNumberHeader; empty: none. PeerCaller sets it.
  std::string number;
};

class PeerTransport {
 public:
  // The serialized reply, or: the server's error with its reason; DEADLINE_EXCEEDED after the
  // timeout; UNAVAILABLE without a reason when no connection stands, or it broke; UNIMPLEMENTED
  // for a method that the server lacks; CANCELLED after Stop.
  using Done = std::function<void(const absl::StatusOr<Payload>& answer)>;

  virtual ~PeerTransport() = default;

  // Sends `request`, whose memory is held until the end of the call, to the server at `address`,
  // over the one connection to it. `done` runs once: on one of the transport's threads, perhaps
  // before the return, or, after Stop, at once. No lock is held then, and it must not call Stop,
  // which waits for it.
  virtual void Call(const std::string& address, const PeerCallOptions& options,
                    const Payload& request, Done done) = 0;
  // Cancels every call, and returns when all their `done` have. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace ballast::server
