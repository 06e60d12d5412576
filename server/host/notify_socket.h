// NotifySocket: messages to the supervisor that started this process, in the protocol of systemd
// (sd_notify(3)): each is one datagram with lines NAME=value, to the socket of $NOTIFY_SOCKET.
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
  // `name`: the absolute path of a socket, or "@name" for one in the abstract namespace. The socket
  // need not exist yet. Errors: INVALID_ARGUMENT for any other or overlong name, RESOURCE_EXHAUSTED
  // if this process can open no socket.
  static absl::StatusOr<std::unique_ptr<NotifySocket>> Open(const std::string& name);
  ~NotifySocket();
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  // Sends `lines` unchanged; waits up to a second if the supervisor does not read. Errors:
  // UNAVAILABLE, naming the socket: the supervisor did not receive it.
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
