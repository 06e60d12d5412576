// PosixSockets: listening sockets of one port, an epoll set for them and for silent connections,
// and a descriptor in reserve.
// Comes from: GenericServer. Goes to: AcceptLoop. Thread safety: as Sockets.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/net/sockets.h"

namespace ballast::server {

class PosixSockets final : public Sockets {
 public:
  // Listens on "host:port", a name at all of its addresses; 0.0.0.0 and [::] at all addresses of
  // both kinds. `user_timeout`: how long sent bytes may stay unacknowledged by the other side's
  // kernel. Errors: UNAVAILABLE with the address and the cause.
  static absl::StatusOr<std::unique_ptr<PosixSockets>> Listen(
      const std::string& address, std::chrono::milliseconds user_timeout);
  ~PosixSockets() override;
  PosixSockets(const PosixSockets&) = delete;
  PosixSockets& operator=(const PosixSockets&) = delete;

  int port() const { return port_; }

  Happened Wait(std::chrono::nanoseconds at_most, bool listening) override;
  void Wake() override;
  Incoming Accept() override;
  bool Refuse() override;
  void Watch(int fd) override;
  void Unwatch(int fd) override;
  std::string Peek(int fd, size_t bytes, bool* ended) override;
  uint64_t Identity(int fd) override;
  void Close(int fd) override;

 private:
  PosixSockets() = default;

  absl::Status Open();
  // Binds `host`, every address that it stands for, and port_ unless it is 0.
  absl::Status Bind(const std::string& host, std::chrono::milliseconds user_timeout);
  void Listening(bool wanted);

  int port_ = 0;
  int epoll_ = -1;
  int wake_ = -1;
  int reserve_ = -1;
  std::vector<int> listeners_;
  bool listening_ = false;
};

}  // namespace ballast::server
