// Addresses of TCP ports, and the beginning of a connection to one.
// Comes from: server/admin, server/net, the server's ListenerProbe, common/tls. Goes to: the kernel
// and its resolver.
// Thread safety: pure functions but for the system calls.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast {

// An IP address and a port, as a socket wants them.
class SocketAddress {
 public:
  // Copies `bytes` bytes, at most as many as sockaddr_storage has.
  SocketAddress(const sockaddr* address, socklen_t bytes);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const { return bytes_; }
  int family() const { return storage_.ss_family; }
  int port() const;
  void SetPort(int port);

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

enum class SocketUse { kConnect, kListen };

// All addresses of `host`, an address without brackets or a name, which is looked up and may block;
// in the order in which they are to be tried. UNAVAILABLE with the resolver's words.
absl::StatusOr<std::vector<SocketAddress>> FindAddresses(const std::string& host, int port,
                                                         SocketUse use);

// Whether `host` is an IPv4 or IPv6 address, without brackets.
bool IsIpAddress(const std::string& host);

// A stream socket for an address, which does not block and ends with exec; -1 with errno. The
// caller closes it.
int OpenStreamSocket(const SocketAddress& address);

// Begins to connect, and does not wait. Returns the descriptor, which the caller closes; -1 when
// the connection cannot begin.
int BeginConnect(const SocketAddress& address);
// The same to an address as IsIpAddress has it; -1 also for another text.
int BeginConnect(const std::string& host, int port);

}  // namespace ballast
