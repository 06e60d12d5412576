// Sockets: the accept loop's view of the kernel, so that a test can play a kernel without free
// descriptors.
// Comes from: AcceptLoop. Goes to: the kernel (PosixSockets). Thread safety: the loop's thread, but
// for Wake, which any thread may call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ballast::server {

enum class Accepted {
  kConnection,
  kNone,          // no connection waits, or the one that waited is gone
  kNoDescriptor,  // a connection waits, but this process or this machine has no descriptor left
};

struct Incoming {
  Accepted result = Accepted::kNone;
  int fd = -1;
  std::string address;  // of the other side; IPv6 by its network of 64 bits
};

struct Happened {
  bool listener = false;         // a connection waits to be accepted
  std::vector<int> connections;  // of those watched: bytes came, or the other side closed
};

class Sockets {
 public:
  virtual ~Sockets() = default;

  // Waits for something to happen, for Wake, or for `at_most`. Listeners outside `listening` are
  // ignored.
  virtual Happened Wait(std::chrono::nanoseconds at_most, bool listening) = 0;
  // Makes Wait return.
  virtual void Wake() = 0;
  // The next connection that waits. The caller closes or hands on its descriptor.
  virtual Incoming Accept() = 0;
  // Takes the connection that waits although there is no descriptor left, and closes it, by giving
  // up the one held in reserve meanwhile. False: not even this is possible.
  virtual bool Refuse() = 0;
  // Starts and stops watching a connection for bytes.
  virtual void Watch(int fd) = 0;
  virtual void Unwatch(int fd) = 0;
  // Up to `bytes` of the first bytes received, which stay in the socket; `ended`: the other side
  // has closed.
  virtual std::string Peek(int fd, size_t bytes, bool* ended) = 0;
  // Identity of the connection of `fd` among all others while it is open; 0 once closed.
  virtual uint64_t Identity(int fd) = 0;
  virtual void Close(int fd) = 0;
};

}  // namespace ballast::server
