#include "server/listen.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/address.h"

namespace ballast::server {
namespace {

// The temporary file, renamed to `path` once complete.
std::string Unfinished(const std::string& path) { return absl::StrCat(path, ".", getpid()); }

}  // namespace

std::string JoinHostPort(absl::string_view host, int port) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<std::string> ToldAddress(absl::string_view listen, absl::string_view advertise,
                                        int bound_port) {
  BALLAST_ASSIGN_OR_RETURN(const HostPort told,
                           ParseHostPort(advertise.empty() ? listen : advertise));
  return JoinHostPort(told.host, told.port == 0 ? bound_port : told.port);
}

std::string ToldAdminAddress(const std::string& admin, const std::string& told) {
  const auto own = ParseHostPort(admin);
  const auto host = ParseHostPort(told);
  if (!own.ok() || !host.ok()) return "";
  return IsWildcard(own->host) ? JoinHostPort(host->host, own->port) : admin;
}

std::string OpenNetworkWarning(const config::v1::ServerConfig& config, const std::string& address) {
  const auto listen = ParseHostPort(config.listen().address());
  const bool secured = config.security().mode() == config::v1::SECURITY_MODE_TLS;
  if (secured || !listen.ok() || IsLoopback(listen->host)) return "";
  return absl::StrCat("listen.insecure_network: every process that reaches ", address,
                      " may read and change all jobs; set security.mode: tls");
}

absl::Status CheckReadyFile(const std::string& path) {
  const std::string next = Unfinished(path);
  const bool writable = std::ofstream(next, std::ios::trunc).good();
  const int error = writable ? EISDIR : errno;
  std::remove(next.c_str());
  if (writable && !std::filesystem::is_directory(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--ready-file: cannot write ", path, ": ",
                                                 std::strerror(error),
                                                 "; name a file in a directory that is there"));
}

absl::Status WriteReadyFile(const std::string& path, const ReadyInfo& info) {
  const std::string next = Unfinished(path);
  std::ofstream file(next, std::ios::trunc);
  // Addresses have been parsed: none of them needs escaping.
  file << "{\"id\": " << info.id << ", \"address\": \"" << info.address << "\", \"admin\": \""
       << info.admin << "\", \"pid\": " << getpid() << "}\n";
  file.close();
  if (!file || std::rename(next.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(next.c_str());
    return absl::InternalError(
        absl::StrCat("cannot write the ready file ", path, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace ballast::server
