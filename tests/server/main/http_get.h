// One request to an admin port of loopback.
// Comes from: tests of the server. Goes to: its admin port. Thread safety: a pure function.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "common/text/address.h"

namespace ballast::server {

// The answer to GET `target` at an address of loopback; "" when nothing answers.
inline std::string HttpGet(const std::string& address, const std::string& target) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address)->port));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  std::string answer;
  const std::string request = "GET " + target + " HTTP/1.0\r\n\r\n";
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(fd, bytes, sizeof(bytes), 0)) > 0;) answer.append(bytes, got);
  }
  close(fd);
  return answer;
}

}  // namespace ballast::server
