#include "common/security/identity.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/faults/planted.h"
#include "common/text/names.h"

namespace ballast {
namespace {

constexpr char kScheme[] = "spiffe://";
constexpr size_t kUriBytesMax = 2048;  // Of a SPIFFE ID.

absl::Status Bad(absl::string_view uri, absl::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("identity ", Quoted(uri), " is not allowed: ", rule));
}

// Of a tenant or a single trainer.
absl::Status CheckPart(absl::string_view uri, absl::string_view what, absl::string_view part) {
  const absl::Status named = ValidateName(what, part);
  return named.ok() ? named : Bad(uri, named.message());
}

absl::StatusOr<Role> RoleInTenant(absl::string_view uri, absl::string_view name) {
  for (const Role role : {Role::kTrainer, Role::kViewer, Role::kOperator}) {
    if (name == RoleName(role)) return role;
  }
  return Bad(uri, absl::StrCat("role ", Quoted(name), " is unknown; trainer, viewer and operator ",
                               "are known in a tenant"));
}

// The part after "tenant".
absl::StatusOr<Identity> ParseTenant(absl::string_view uri,
                                     const std::vector<absl::string_view>& parts) {
  if (parts.size() < 3) return Bad(uri, "behind the tenant its role is missing");
  Identity identity;
  BALLAST_RETURN_IF_ERROR(CheckPart(uri, "tenant", parts[1]));
  identity.tenant.assign(parts[1].data(), parts[1].size());
  BALLAST_ASSIGN_OR_RETURN(identity.role, RoleInTenant(uri, parts[2]));
  const size_t most = identity.role == Role::kTrainer ? 4 : 3;
  if (parts.size() > most) {
    return Bad(uri, absl::StrCat("it has ", parts.size(), " parts, limit ", most, " for role ",
                                 RoleName(identity.role)));
  }
  if (parts.size() < 4) return identity;
  BALLAST_RETURN_IF_ERROR(CheckPart(uri, "trainer", parts[3]));
  identity.name.assign(parts[3].data(), parts[3].size());
  return identity;
}

// The part after "server". Each id has one spelling.
absl::StatusOr<Identity> ParseServer(absl::string_view uri,
                                     const std::vector<absl::string_view>& parts) {
  Identity identity;
  identity.role = Role::kServer;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &identity.server) ||
      (absl::StrCat(identity.server) != parts[1] && !BALLAST_PLANTED)) {
    return Bad(uri, "a server is server/<id>, with the number of cluster.id");
  }
  return identity;
}

absl::StatusOr<Identity> ParsePath(absl::string_view uri, absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  if (parts[0] == "tenant") return ParseTenant(uri, parts);
  if (parts[0] == "server") return ParseServer(uri, parts);
  if (path != "admin") {
    return Bad(uri, "behind the trust domain stands tenant/<tenant>/<role>, server/<id> or admin");
  }
  Identity identity;
  identity.role = Role::kAdmin;
  return identity;
}

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kTrainer:
      return "trainer";
    case Role::kViewer:
      return "viewer";
    case Role::kOperator:
      return "operator";
    case Role::kServer:
      return "server";
    case Role::kAdmin:
      return "admin";
  }
  return "unknown";
}

std::string UriOf(const Identity& identity) {
  const std::string base = absl::StrCat(kScheme, identity.domain, "/");
  if (identity.role == Role::kAdmin) return absl::StrCat(base, "admin");
  if (identity.role == Role::kServer) return absl::StrCat(base, "server/", identity.server);
  return absl::StrCat(base, "tenant/", identity.tenant, "/", RoleName(identity.role),
                      identity.name.empty() ? "" : "/", identity.name);
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view uri, absl::string_view domain) {
  if (uri.size() > kUriBytesMax) {
    return Bad(uri, absl::StrCat("it has ", uri.size(), " bytes, limit ", kUriBytesMax));
  }
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kScheme)) return Bad(uri, "it must begin with spiffe://");
  const size_t slash = rest.find('/');
  if (slash == absl::string_view::npos) return Bad(uri, "it has no path");
  const absl::string_view own = rest.substr(0, slash);
  if (own != domain) {
    return Bad(uri, absl::StrCat("its trust domain is ", Quoted(own), ", here it must be ",
                                 Quoted(domain)));
  }
  BALLAST_ASSIGN_OR_RETURN(Identity identity, ParsePath(uri, rest.substr(slash + 1)));
  identity.domain.assign(own.data(), own.size());
  return identity;
}

absl::StatusOr<Identity> IdentityOfUris(const std::vector<std::string>& uris,
                                        absl::string_view domain) {
  if (uris.size() == 1) return ParseIdentity(uris[0], domain);
  if (uris.empty()) {
    return absl::InvalidArgumentError(
        "a certificate has no URI among its subject alternative names; exactly one is needed, such "
        "as spiffe://<domain>/tenant/<tenant>/trainer");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a certificate has ", uris.size(), " URIs among its subject alternative names (",
                   Quoted(uris[0]), ", ", Quoted(uris[1]), "); exactly one is needed"));
}

}  // namespace ballast
