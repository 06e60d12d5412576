#include "common/base/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace ballast {
namespace {

// An IP address as a socket wants it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;  // 0: none
};

SocketAddress MakeAddress(const std::string& host, int port) {
  SocketAddress address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    address.bytes = sizeof(*v4);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    address.bytes = sizeof(*v6);
  }
  return address;
}

}  // namespace

bool IsIpAddress(const std::string& host) { return MakeAddress(host, 0).bytes != 0; }

int BeginConnect(const std::string& host, int port) {
  const SocketAddress address = MakeAddress(host, port);
  if (address.bytes == 0) return -1;
  const int made = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return -1;
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(made, to, address.bytes) == 0 || errno == EINPROGRESS) return made;
  close(made);
  return -1;
}

}  // namespace ballast
