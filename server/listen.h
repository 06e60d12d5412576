// Addresses a server binds and tells, and the file by which it says that it is ready.
// Comes from: server.cc. Goes to: common/base/address.h. Thread safety: pure apart from the file.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ballast/config/v1/server.pb.h"

namespace ballast::server {

// "host:port", an IPv6 host in brackets.
std::string JoinHostPort(absl::string_view host, int port);

// The address told to others: `advertise`, or `listen` when that is empty, with `bound_port` in
// place of port 0. Errors: those of ParseHostPort.
absl::StatusOr<std::string> ToldAddress(absl::string_view listen, absl::string_view advertise,
                                        int bound_port);

// Where others find the admin port that is bound at `admin`: at its own host, or at that of `told`,
// where it is bound at every address of the machine. Both are host:port.
std::string ToldAdminAddress(const std::string& admin, const std::string& told);

// Of a server that other hosts reach and that asks them for no certificate: what that means, with
// `address`, where it is reached. Else empty.
std::string OpenNetworkWarning(const config::v1::ServerConfig& config, const std::string& address);

// What --ready-file holds.
struct ReadyInfo {
  uint32_t id = 0;
  std::string address;
  std::string admin;  // empty without an admin port
};

// Whether WriteReadyFile will be able to write there, for a refusal before anything is served.
// Error: INVALID_ARGUMENT with the path and the cause.
absl::Status CheckReadyFile(const std::string& path);

// Writes {"id", "address", "admin", "pid"} as JSON to `path`, so that no reader ever sees half of
// it. Error: INTERNAL with the path and the cause.
absl::Status WriteReadyFile(const std::string& path, const ReadyInfo& info);

}  // namespace ballast::server
