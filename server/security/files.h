// The files of the gate, read whole: tokens and denied identities. A server reads them at its start
// and again after SIGHUP; a file at fault changes nothing of what came from it.
// Comes from: the paths of security.tokens_file and security.denied_file. Goes to: Gate::Replace.
// Thread safety: pure but for the file system; the calls block on it.
#pragma once

#include <string>

#include "absl/status/status.h"
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

// A file whole, of at most 4 MiB and writable by its owner only. Errors: as ReadGuardedFile.
absl::StatusOr<std::string> ReadOwnedFile(const std::string& path);

// Reads both into `files`. A file at fault leaves its part of `files` as it is, and the other one
// is read all the same: a bad file of tokens must not keep a revocation out. INVALID_ARGUMENT, a
// line for each file at fault: "path:line:column: why", or "path: why" for a file that is missing,
// above 4 MiB, writable by others than its owner, or, with tokens, readable by others than its
// owner and group.
absl::Status ReadGateFiles(const GatePaths& paths, const std::string& domain, GateFiles* files);

}  // namespace ballast::server
