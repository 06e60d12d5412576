// The TCP congestion control that all sockets of ours ask for.
// Comes from: proto/convert (clients), server/net (the listener). Goes to: the kernel.
// Thread safety: a system call.
#pragma once

namespace ballast {

// Cubic, else reno, which every kernel has. Other sockets than TCP stay as they are. Connections
// inherit the choice of the socket that listens for them.
void ChooseCongestionControl(int fd);

}  // namespace ballast
