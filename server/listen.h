// The addresses that a server binds and advertises, and the file that signals readiness.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/config/v1/server.pb.h"

namespace ballast::server {

// "host:port", an IPv6 host in brackets.
std::string JoinHostPort(absl::string_view host, int port);

// The address given to other hosts: `advertise`, or `listen` if that is empty, with `bound_port`
// replacing port 0. Errors: those of ParseHostPort.
absl::StatusOr<std::string> ToldAddress(absl::string_view listen, absl::string_view advertise,
                                        int bound_port);

// The address at which other hosts reach the admin port bound at `admin`: its own host, or the host
// of `told` if it is bound to all addresses of the machine. Both are host:port.
std::string ToldAdminAddress(const std::string& admin, const std::string& told);

// A warning for a server that is reachable from other hosts but asks for no certificate; it says
// what follows and names `address`, the server's own. Empty for any other server.
std::string OpenNetworkWarning(const config::v1::ServerConfig& config, const std::string& address);

// Contents of --ready-file.
struct ReadyInfo {
  uint32_t id = 0;
  std::string address;
  std::string admin;  // empty without an admin port
};

// Whether WriteReadyFile will be able to write there; called before anything is served. Error:
// INVALID_ARGUMENT with the path and the cause.
absl::Status CheckReadyFile(const std::string& path);

// Writes {"id", "address", "admin", "pid"} as JSON to `path`, atomically for readers. Error:
// INTERNAL with the path and the cause.
absl::Status WriteReadyFile(const std::string& path, const ReadyInfo& info);

}  // namespace ballast::server
