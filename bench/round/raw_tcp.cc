// The raw TCP yardstick; see raw_tcp.h.
// Thread safety: one thread on each side.
#include "bench/round/raw_tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "bench/parts/harness.h"
#include "common/base/status_macros.h"

namespace ballast::bench {
namespace {

constexpr size_t kWriteBytes = 1 << 20;
constexpr char kPush = 'u';
constexpr char kPull = 'd';

bool SendAll(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, std::min(bytes, kWriteBytes), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, std::min(bytes, kWriteBytes), 0);
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool SetUp(int fd, const std::string& congestion_control) {
  const int one = 1;
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(),
                    static_cast<socklen_t>(congestion_control.size())) == 0 &&
         setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0;
}

// The child: obeys until its connection ends.
void Serve(int fd, char* memory, size_t bytes) {
  char command = 0;
  while (ReceiveAll(fd, &command, 1)) {
    const bool done = command == kPush ? ReceiveAll(fd, memory, bytes) && SendAll(fd, &command, 1)
                                       : SendAll(fd, memory, bytes);
    if (!done) return;
  }
}

[[noreturn]] void RunChild(const sockaddr_in& address, size_t bytes,
                           const std::string& congestion_control) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  absl::StatusOr<Arena> memory = Arena::Create(bytes);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!memory.ok() || fd < 0 || !SetUp(fd, congestion_control) ||
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    _exit(1);
  }
  std::memset(memory->data(), 0x5A, bytes);
  Serve(fd, memory->data(), bytes);
  _exit(0);
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

absl::StatusOr<std::string> ChooseCongestionControl() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SystemError("socket");
  std::string chosen;
  for (const char* name : {"cubic", "reno"}) {
    if (chosen.empty() && SetUp(fd, name)) chosen = name;
  }
  close(fd);
  if (!chosen.empty()) return chosen;
  return absl::InternalError("this kernel lets sockets use neither cubic nor reno");
}

absl::StatusOr<std::unique_ptr<RawTcpPeer>> RawTcpPeer::Fork(
    size_t bytes, const std::string& congestion_control) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t address_bytes = sizeof(address);
  auto* const any_address = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || !SetUp(listener, congestion_control) ||
      bind(listener, any_address, sizeof(address)) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, any_address, &address_bytes) != 0) {
    return SystemError("raw TCP listener");
  }
  const pid_t child = fork();
  if (child < 0) return SystemError("fork");
  if (child == 0) {
    close(listener);
    RunChild(address, bytes, congestion_control);
  }
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  close(listener);
  if (fd < 0 || !SetUp(fd, congestion_control)) return SystemError("raw TCP connection");
  return std::unique_ptr<RawTcpPeer>(new RawTcpPeer(bytes, fd, child));
}

RawTcpPeer::~RawTcpPeer() {
  close(fd_);
  waitpid(child_, nullptr, 0);
}

absl::StatusOr<double> RawTcpPeer::Push(const char* data) {
  const auto start = std::chrono::steady_clock::now();
  char answer = 0;
  if (!SendAll(fd_, &kPush, 1) || !SendAll(fd_, data, bytes_) || !ReceiveAll(fd_, &answer, 1)) {
    return SystemError("raw TCP push");
  }
  return SecondsSince(start);
}

absl::StatusOr<double> RawTcpPeer::Pull(char* data) {
  const auto start = std::chrono::steady_clock::now();
  if (!SendAll(fd_, &kPull, 1) || !ReceiveAll(fd_, data, bytes_)) {
    return SystemError("raw TCP pull");
  }
  return SecondsSince(start);
}

}  // namespace ballast::bench
