// The files of the gate, read whole: tokens and denied identities. A server reads them at its start
// and again when they change (RereadFiles); a file at fault leaves its earlier content in force.
// Comes from: the paths of security.tokens_file and security.denied_file. Goes to: Gate::Replace.
// Thread safety: pure but for the file system; the calls block on it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/tokens.h"
#include "server/security/denied.h"

namespace ballast::server {

struct GateFiles {
  TokenTable tokens;
  DeniedIdentities denied;
};

// A file whole, of at most 4 MiB and writable by its owner only. Errors: as ReadGuardedFile.
absl::StatusOr<std::string> ReadOwnedFile(const std::string& path);

// Each reads its file into `tokens` or `denied`, which stays as it is when the file is at fault or
// `path` is empty. The two are apart: a bad file of tokens must not keep a revocation out. A file
// of tokens must not be readable by others than its owner and group. Errors: as ReadOwnedFile;
// INVALID_ARGUMENT "path:line:column: why".
absl::Status ReadTokens(const std::string& path, const std::string& domain, TokenTable* tokens);
absl::Status ReadDenied(const std::string& path, const std::string& domain,
                        DeniedIdentities* denied);

}  // namespace ballast::server
