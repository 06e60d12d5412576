// TCP connections of this process to ports of its own.
// Comes from: server/admin, the server's ListenerProbe. Goes to: the kernel.
// Thread safety: pure functions but for the system calls.
#pragma once

#include <string>

namespace ballast {

// Whether `host` is an IPv4 or IPv6 address, without brackets.
bool IsIpAddress(const std::string& host);

// Begins to connect to a port of such an address, and does not wait. Returns the descriptor, which
// the caller closes; -1 when the connection cannot begin, or `host` is no address.
int BeginConnect(const std::string& host, int port);

}  // namespace ballast
