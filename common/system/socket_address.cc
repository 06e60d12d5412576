#include "common/system/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"

namespace ballast {
namespace {

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return absl::UnavailableError(gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    addresses.emplace_back(one->ai_addr, one->ai_addrlen).SetPort(port);
  }
  return addresses;
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes)
    : bytes_(std::min<socklen_t>(bytes, sizeof(storage_))) {
  std::memcpy(&storage_, address, bytes_);
}

int SocketAddress::port() const {
  return ntohs(storage_.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

void SocketAddress::SetPort(int port) {
  auto& field = storage_.ss_family == AF_INET6
                    ? reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port
                    : reinterpret_cast<sockaddr_in*>(&storage_)->sin_port;
  field = htons(static_cast<uint16_t>(port));
}

absl::StatusOr<std::vector<SocketAddress>> FindAddresses(const std::string& host, int port,
                                                         SocketUse use) {
  return Resolve(host, port, use == SocketUse::kListen ? AI_PASSIVE : 0);
}

bool IsIpAddress(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

int OpenStreamSocket(const SocketAddress& address) {
  return socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

int BeginConnect(const SocketAddress& address) {
  const int made = OpenStreamSocket(address);
  if (made < 0) return -1;
  if (connect(made, address.get(), address.bytes()) == 0 || errno == EINPROGRESS) return made;
  close(made);
  return -1;
}

int BeginConnect(const std::string& host, int port) {
  if (!IsIpAddress(host)) return -1;
  const auto addresses = Resolve(host, port, AI_NUMERICHOST);
  return addresses.ok() ? BeginConnect(addresses->front()) : -1;
}

}  // namespace ballast
