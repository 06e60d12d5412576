// ReadGuards: puts a FrameGuard in front of gRPC on each connection that the port has taken. gRPC
// 1.51 offers no place for one, so this file defines two functions that it calls, recvmsg of the C
// library and SSL_read of OpenSSL: the program's own definitions come before those of libraries.
// They call the real ones and show the bytes to the guard; after a fault they fail as they do where
// a connection broke. Other sockets, and other users of TLS, are left alone (docs/decisions/052).
// Comes from: Listener. Goes to: gRPC's reads. Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>

#include "server/net/connection_gate.h"
#include "server/net/frame_guard.h"

namespace ballast::server {

class ReadGuards {
 public:
  // Connections have descriptors below it.
  static constexpr int kDescriptorEnd = 1 << 20;

  // Called on the thread that read, and must not block: the connection is over a limit, and its
  // read fails.
  using Cut = std::function<void(int fd, uint64_t identity, ConnectionRefusal why)>;

  // Connections of `owner` call `cut` from now on, until Forget.
  static void Begin(const void* owner, Cut cut);
  // Guards the connection of `fd`, not read from yet, from its first read on. `identity`: see
  // Sockets::Identity.
  static void Guard(int fd, uint64_t identity, bool tls, const FrameLimits& limits,
                    const void* owner);
  // No connection of `owner` calls its `cut` any more, also not now.
  static void Forget(const void* owner);
};

}  // namespace ballast::server
