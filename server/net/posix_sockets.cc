#include "server/net/posix_sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/system/congestion_control.h"
#include "common/system/socket_address.h"
#include "common/text/address.h"

namespace ballast::server {
namespace {

constexpr size_t kEventsAtOnce = 64;
constexpr size_t kIpv6NetworkBytes = 8;

absl::Status CannotListen(const std::string& address, const char* why) {
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on ", address, ": ", why,
      "; the address is in use, not of this machine, or not permitted: name another one"));
}

// The address of the other side as the limits count it.
std::string AddressKey(const sockaddr_storage& from) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    return inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  }
  in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    return inet_ntop(AF_INET, &v6.s6_addr[12], text.data(), text.size());
  }
  std::memset(&v6.s6_addr[kIpv6NetworkBytes], 0, sizeof(v6) - kIpv6NetworkBytes);
  return absl::StrCat(inet_ntop(AF_INET6, &v6, text.data(), text.size()), "/64");
}

void Set(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// A socket that listens on `at`; -1 with errno. Connections inherit the options set here.
int OpenListener(const SocketAddress& at, bool both_kinds, std::chrono::milliseconds user_timeout) {
  const int fd = OpenStreamSocket(at);
  if (fd < 0) return -1;
  Set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) Set(fd, IPPROTO_IPV6, IPV6_V6ONLY, both_kinds ? 0 : 1);
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(user_timeout.count()));
  ChooseCongestionControl(fd);
  if (bind(fd, at.get(), at.bytes()) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  auto* const address = reinterpret_cast<sockaddr*>(&bound);
  return getsockname(fd, address, &bytes) == 0 ? SocketAddress(address, bytes).port() : 0;
}

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

absl::StatusOr<std::unique_ptr<PosixSockets>> PosixSockets::Listen(
    const std::string& address, std::chrono::milliseconds user_timeout) {
  BALLAST_ASSIGN_OR_RETURN(const HostPort to, ParseHostPort(address));
  std::unique_ptr<PosixSockets> sockets(new PosixSockets());
  sockets->port_ = to.port;
  absl::Status bound = absl::UnavailableError("");
  if (IsWildcard(to.host)) bound = sockets->Bind("::", user_timeout);
  // A machine without IPv6 has 0.0.0.0 only.
  if (!bound.ok()) bound = sockets->Bind(to.host, user_timeout);
  if (!bound.ok()) return CannotListen(address, std::string(bound.message()).c_str());
  BALLAST_RETURN_IF_ERROR(sockets->Open());
  return sockets;
}

absl::Status PosixSockets::Bind(const std::string& host, std::chrono::milliseconds user_timeout) {
  BALLAST_ASSIGN_OR_RETURN(std::vector<SocketAddress> found,
                           FindAddresses(host, port_, SocketUse::kListen));
  absl::Status status = absl::OkStatus();
  const bool wildcard = IsWildcard(host);
  for (SocketAddress& at : found) {
    at.SetPort(port_);  // The first socket has chosen a free port if none was given.
    const int fd = OpenListener(at, wildcard, user_timeout);
    if (fd < 0) {
      status = absl::UnavailableError(std::strerror(errno));
      continue;
    }
    listeners_.push_back(fd);
    port_ = BoundPort(fd);
  }
  return listeners_.empty() ? status : absl::OkStatus();
}

absl::Status PosixSockets::Open() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  reserve_ = OpenReserve();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wake_;
  if (epoll_ >= 0 && wake_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat("cannot wait for connections: ", std::strerror(errno),
                                             "; allow this process more open files"));
}

PosixSockets::~PosixSockets() {
  for (const int fd : listeners_) close(fd);
  for (const int fd : {epoll_, wake_, reserve_}) {
    if (fd >= 0) close(fd);
  }
}

void PosixSockets::Listening(bool wanted) {
  if (std::exchange(listening_, wanted) == wanted) return;
  for (const int fd : listeners_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    (void)epoll_ctl(epoll_, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event);
  }
}

Happened PosixSockets::Wait(std::chrono::nanoseconds at_most, bool listening) {
  Listening(listening);
  std::array<epoll_event, kEventsAtOnce> events{};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(std::max<int64_t>(0, ms)));
  Happened happened;
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    if (fd == wake_) {
      uint64_t times = 0;
      (void)!read(wake_, &times, sizeof(times));
    } else if (std::find(listeners_.begin(), listeners_.end(), fd) != listeners_.end()) {
      happened.listener = true;
    } else {
      happened.connections.push_back(fd);
    }
  }
  return happened;
}

void PosixSockets::Wake() {
  const uint64_t once = 1;
  (void)!write(wake_, &once, sizeof(once));
}

Incoming PosixSockets::Accept() {
  for (const int listener : listeners_) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof(from);
    const int fd =
        accept4(listener, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) return {Accepted::kConnection, fd, AddressKey(from)};
    if (IsOutOfDescriptors(errno)) return {Accepted::kNoDescriptor, -1, ""};
  }
  return {};
}

bool PosixSockets::Refuse() {
  if (reserve_ < 0) {
    reserve_ = OpenReserve();
    return reserve_ >= 0;
  }
  close(std::exchange(reserve_, -1));
  const Incoming incoming = Accept();
  if (incoming.fd >= 0) close(incoming.fd);
  reserve_ = OpenReserve();
  return incoming.fd >= 0;
}

void PosixSockets::Watch(int fd) {
  epoll_event event{};
  // Each arrival once: bytes that do not decide yet must not wake the loop again and again.
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.fd = fd;
  (void)epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void PosixSockets::Unwatch(int fd) { (void)epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

std::string PosixSockets::Peek(int fd, size_t bytes, bool* ended) {
  std::string first(bytes, '\0');
  const ssize_t got = recv(fd, first.data(), bytes, MSG_PEEK | MSG_DONTWAIT);
  *ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  first.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  return first;
}

uint64_t PosixSockets::Identity(int fd) {
  struct stat seen {};
  return fstat(fd, &seen) == 0 && S_ISSOCK(seen.st_mode) ? seen.st_ino : 0;
}

void PosixSockets::Close(int fd) { close(fd); }

}  // namespace ballast::server
