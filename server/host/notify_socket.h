// NotifySocket: words to the supervisor that started this process, in the protocol of systemd
// (sd_notify(3)): each is one datagram with lines NAME=value, to the socket of $NOTIFY_SOCKET.
// Comes from: main, which reads the environment. Goes to: Supervision.
// Thread safety: thread-safe.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast::server {

class NotifySocket {
 public:
  // `name`: the path of a socket, from "/" on, or "@name" of one in the abstract namespace. The
  // socket need not be there yet. Errors: INVALID_ARGUMENT for another name or one that is too
  // long, RESOURCE_EXHAUSTED when this process can open no socket.
  static absl::StatusOr<std::unique_ptr<NotifySocket>> Open(const std::string& name);
  ~NotifySocket();
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  // Sends `lines` as they are; waits up to a second where the supervisor does not read. Errors:
  // UNAVAILABLE, naming the socket: the supervisor has not heard it.
  absl::Status Send(absl::string_view lines) const;

 private:
  NotifySocket(int socket, std::string name, const sockaddr_un& address, socklen_t length)
      : socket_(socket), name_(std::move(name)), address_(address), length_(length) {}

  const int socket_;
  const std::string name_;
  const sockaddr_un address_;
  const socklen_t length_;
};

}  // namespace ballast::server
