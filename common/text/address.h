// host:port texts as written in configuration, peers files, flags and options of clients.
// Comes from: server/config, the client's options, ballastctl. Goes to: nothing.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ballast {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
};

// Splits "127.0.0.1:7000", "[::1]:7000" or "host-name:7000". INVALID_ARGUMENT, naming the text and
// the form: no port, port above 65535, an IPv6 address without brackets, an empty host, or a host
// with characters other than letters, digits, '.', '-', '_' (in brackets: hex digits, ':', '.').
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// The same for a place to connect to. INVALID_ARGUMENT also for port 0.
absl::StatusOr<HostPort> ParseEndpoint(absl::string_view text);

// True for 127.0.0.0/8, ::1 and "localhost". Other names are not looked up and count as network.
bool IsLoopback(absl::string_view host);

// True for the addresses that bind every interface: 0.0.0.0 and ::.
bool IsWildcard(absl::string_view host);

}  // namespace ballast
