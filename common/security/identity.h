// Identities of callers: the one URI of a certificate, or of a line of the token file.
//
//   spiffe://<domain>/tenant/<tenant>/trainer            trainers of the tenant, which trust each
//   spiffe://<domain>/tenant/<tenant>/trainer/<name>     other; or a single one of them
//   spiffe://<domain>/tenant/<tenant>/viewer             reads the tenant's resources
//   spiffe://<domain>/tenant/<tenant>/operator           also changes it
//   spiffe://<domain>/server/<id>                        the state server with that cluster.id
//   spiffe://<domain>/admin                              operates the whole cluster
//
// Source: the SPIFFE ID standard, section 2, from which these rules take a part: one URI, a trust
// domain in lower case, no empty, "." or ".." segment, no query, fragment, port or escape.
// Comes from: certificates, token files. Goes to: the gate, JobAdmin. Thread safety: pure
// functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/text/qualified_name.h"

namespace ballast {

enum class Role : uint8_t { kTrainer = 0, kViewer = 1, kOperator = 2, kServer = 3, kAdmin = 4 };

// "trainer", "viewer", "operator", "server", "admin".
const char* RoleName(Role role);

struct Identity {
  Role role = Role::kTrainer;
  std::string domain;
  std::string tenant;   // of trainers, viewers and operators; else empty
  std::string name;     // of a single trainer; else empty
  uint32_t server = 0;  // of servers
};

// As written in a certificate. ParseIdentity gives the same identity back.
std::string UriOf(const Identity& identity);

// The identity that `uri` names. INVALID_ARGUMENT when it names none of the above, or one of
// another trust domain than `domain`; the message shows the URI, escaped and shortened, and the
// rule.
absl::StatusOr<Identity> ParseIdentity(absl::string_view uri, absl::string_view domain);

// The identity of a certificate with these URIs among its subject alternative names: there must be
// exactly one. Errors as ParseIdentity's.
absl::StatusOr<Identity> IdentityOfUris(const std::vector<std::string>& uris,
                                        absl::string_view domain);

}  // namespace ballast
