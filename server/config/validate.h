// Rules that span fields of the configuration: constraints beyond types and bounds. Comes from:
// load, tests, server main (peers file). Goes to: fields, address.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ballast/config/v1/server.pb.h"

namespace ballast::config {

using v1::Peer;
using v1::ServerConfig;

// One broken rule: the field to change, "timing.lease", and the fault, with the next step.
struct Violation {
  std::string path;
  std::string message;
};

// Every broken rule of `config`, bounds of single fields included, in schema order. Unset fields
// count with their defaults.
std::vector<Violation> FindViolations(const ServerConfig& config);

// FindViolations as a status: INVALID_ARGUMENT with one "path: message" per line.
absl::Status Validate(const ServerConfig& config);

// Checks a list of peers against the configuration of this server: addresses, unique ids and
// addresses, this server among them, loopback unless `listen.insecure_network`. For the contents
// of `cluster.peers_file`; the peers of the configuration itself are part of Validate. An empty
// list is refused. INVALID_ARGUMENT with one "peers[i].field: message" per line.
absl::Status ValidatePeers(const ServerConfig& config, const std::vector<Peer>& peers);

}  // namespace ballast::config
