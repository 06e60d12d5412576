#include "server/security/gate.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/reason.h"

namespace ballast::server {
namespace {

constexpr char kBearer[] = "Bearer ";
constexpr size_t kTokenBytesMax = 4096;

// Whether the caller has to show something else, or is known and may not.
bool IsUnknownCaller(Refusal refusal) {
  switch (refusal) {
    case Refusal::kPlaintext:
    case Refusal::kNoIdentity:
    case Refusal::kBadIdentity:
    case Refusal::kBadToken:
      return true;
    case Refusal::kDenied:
    case Refusal::kRole:
    case Refusal::kNotHome:
    case Refusal::kWrongServer:
      return false;
  }
  return false;
}

}  // namespace

const char* RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kPlaintext:
      return "plaintext";
    case Refusal::kNoIdentity:
      return "no_identity";
    case Refusal::kBadIdentity:
      return "bad_identity";
    case Refusal::kBadToken:
      return "bad_token";
    case Refusal::kDenied:
      return "denied";
    case Refusal::kRole:
      return "role";
    case Refusal::kNotHome:
      return "not_home";
    case Refusal::kWrongServer:
      return "wrong_server";
  }
  return "unknown";
}

Gate::Gate(Options options, ServerMetrics* metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      files_(std::make_shared<const GateFiles>()) {}

void Gate::Replace(GateFiles files) {
  auto replaced = std::make_shared<const GateFiles>(std::move(files));
  MutexLock lock(&mu_);
  files_.swap(replaced);
}

void Gate::SetHome(uint32_t server) {
  MutexLock lock(&mu_);
  home_ = server;
}

std::shared_ptr<const GateFiles> Gate::files() const {
  MutexLock lock(&mu_);
  return files_;
}

void Gate::Count(Refusal refusal) const {
  if (metrics_ != nullptr) metrics_->calls_refused(RefusalName(refusal))->Add();
}

absl::Status Gate::Refuse(Refusal refusal, absl::string_view why) const {
  Count(refusal);
  return IsUnknownCaller(refusal)
             ? ReasonedError(absl::StatusCode::kUnauthenticated, Reason::kNoIdentity, why)
             : ReasonedError(absl::StatusCode::kPermissionDenied, Reason::kNotPermitted, why);
}

absl::StatusOr<Identity> Gate::IdentityOf(const Connection& connection,
                                          const GateFiles& files) const {
  if (!connection.encrypted) {
    return Refuse(Refusal::kPlaintext, "this server takes calls over TLS only");
  }
  if (connection.certified) {
    absl::StatusOr<Identity> identity = IdentityOfUris(connection.uris, options_.domain);
    if (identity.ok()) return identity;
    return Refuse(Refusal::kBadIdentity, identity.status().message());
  }
  if (connection.authorization.empty()) {
    return Refuse(Refusal::kNoIdentity,
                  "this server needs a client certificate or a bearer token, and the call has "
                  "neither");
  }
  absl::string_view token = connection.authorization[0];
  const bool bearer = connection.authorization.size() == 1 &&
                      absl::ConsumePrefix(&token, kBearer) && token.size() <= kTokenBytesMax;
  const Identity* const known = bearer ? files.tokens.Find(token) : nullptr;
  if (known != nullptr) return *known;
  return Refuse(Refusal::kBadToken, "the call's bearer token is not one of this server's");
}

absl::Status Gate::CheckHome(const MethodRow& row, const Identity& identity) const {
  if (row.scope != Scope::kHome) return absl::OkStatus();
  std::optional<uint32_t> home;
  {
    MutexLock lock(&mu_);
    home = home_;
  }
  if (!home.has_value()) {
    return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                         "this server does not know the servers of its cluster yet; ask again "
                         "soon");
  }
  if (identity.server == *home) return absl::OkStatus();
  return Refuse(Refusal::kNotHome,
                absl::StrCat("server ", identity.server, " may not order ", row.method,
                             ": the home of this cluster is server ", *home));
}

// The home sends itself no orders, so one that comes over a connection is a stranger's. Which
// caller is the home, another server cannot know without security.
absl::Status Gate::CheckPlainOrder(const MethodRow& row) const {
  if (row.scope != Scope::kHome) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    if (!home_.has_value()) return absl::OkStatus();
  }
  return Refuse(Refusal::kNotHome, absl::StrCat("this server is the home of its cluster and takes "
                                                "no order of another, such as ",
                                                row.method));
}

Admission Gate::Admit(const MethodRow& row, const Connection& connection) const {
  if (row.scope == Scope::kOpen) return {};
  if (!options_.secured) return {CheckPlainOrder(row), {}};
  const std::shared_ptr<const GateFiles> files = this->files();
  absl::StatusOr<Identity> identity = IdentityOf(connection, *files);
  if (!identity.ok()) return {identity.status(), {}};
  return {Check(row, *identity, *files), {.secured = true, .identity = *identity}};
}

absl::Status Gate::Check(const MethodRow& row, const Identity& identity,
                         const GateFiles& files) const {
  if (files.denied.Has(identity)) {
    return Refuse(Refusal::kDenied, absl::StrCat("identity ", UriOf(identity), " is denied here"));
  }
  if (!row.roles.Has(identity.role)) {
    return Refuse(Refusal::kRole, absl::StrCat("role ", RoleName(identity.role), " may not call ",
                                               row.method, "; roles that may: ", row.roles.Text()));
  }
  return CheckHome(row, identity);
}

absl::Status Gate::StillAllowed(const Caller& caller) const {
  if (!caller.secured || !files()->denied.Has(caller.identity)) return absl::OkStatus();
  return Refuse(Refusal::kDenied,
                absl::StrCat("identity ", UriOf(caller.identity), " is denied here"));
}

absl::Status Gate::CheckServer(const Caller& caller, uint32_t server) const {
  if (!caller.secured || caller.identity.server == server) return absl::OkStatus();
  return Refuse(Refusal::kWrongServer,
                absl::StrCat("server ", caller.identity.server, " speaks for server ", server,
                             "; its certificate lets it speak for itself only"));
}

}  // namespace ballast::server
