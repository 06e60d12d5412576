// The files of the gate, read whole: tokens and denied identities. A server reads them at its start
// and again after SIGHUP; a file at fault changes nothing.
// Comes from: the paths of security.tokens_file and security.denied_file. Goes to: Gate::Replace.
// Thread safety: pure but for the file system; the calls block on it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/security/tokens.h"
#include "server/security/denied.h"

namespace ballast::server {

struct GatePaths {
  std::string tokens;  // empty: no tokens
  std::string denied;  // empty: no identity is denied
};

struct GateFiles {
  TokenTable tokens;
  DeniedIdentities denied;
};

// A file whole. INVALID_ARGUMENT "path: why" when it is missing, above 4 MiB or writable by others
// than its owner.
absl::StatusOr<std::string> ReadOwnedFile(const std::string& path);

// Reads both. INVALID_ARGUMENT "path:line:column: why", or "path: why" for a file that is missing,
// above 4 MiB, writable by others than its owner, or, with tokens, readable by others than its
// owner and group.
absl::StatusOr<GateFiles> ReadGateFiles(const GatePaths& paths, const std::string& domain);

}  // namespace ballast::server
