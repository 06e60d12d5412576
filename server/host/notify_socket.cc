#include "server/host/notify_socket.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/names.h"

namespace ballast::server {
namespace {

// The kernel reserves the last byte of a path for its terminator.
constexpr size_t kNameBytesMax = sizeof(sockaddr_un::sun_path) - 1;

absl::Status CheckName(const std::string& name) {
  if (name.size() < 2 || (name[0] != '/' && name[0] != '@')) {
    return absl::InvalidArgumentError(absl::StrCat("NOTIFY_SOCKET is ", Quoted(name),
                                                   ", but must be a path from / on or @name; ",
                                                   "unset it where no supervisor listens"));
  }
  if (name.size() <= kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("NOTIFY_SOCKET has ", name.size(), " bytes, the limit is ", kNameBytesMax,
                   "; let the supervisor listen under a shorter name"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NotifySocket>> NotifySocket::Open(const std::string& name) {
  if (absl::Status status = CheckName(name); !status.ok()) return status;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path);
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (made < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no socket for NOTIFY_SOCKET: ", strerror(errno)));
  }
  const timeval second = {.tv_sec = 1, .tv_usec = 0};
  setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
  return std::unique_ptr<NotifySocket>(new NotifySocket(made, name, address, length));
}

NotifySocket::~NotifySocket() { close(socket_); }

absl::Status NotifySocket::Send(absl::string_view lines) const {
  const ssize_t sent = sendto(socket_, lines.data(), lines.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address_), length_);
  if (sent == static_cast<ssize_t>(lines.size())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the supervisor at NOTIFY_SOCKET=", Quoted(name_),
                                             " does not hear us: ", strerror(errno)));
}

}  // namespace ballast::server
