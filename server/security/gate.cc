#include "server/security/gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/reason.h"

namespace ballast::server {
namespace {

constexpr char kBearer[] = "Bearer ";
constexpr size_t kTokenBytesMax = 4096;

absl::Status ServersUnknown() {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       "this server does not know the servers of its cluster yet; ask again soon");
}

absl::Status NotHeardYet() {
  return ReasonedError(absl::StatusCode::kUnavailable, Reason::kRecovering,
                       "a server of this cluster has not answered this one yet, so the call may be "
                       "a stranger's; ask again soon");
}

bool IsOfServers(const MethodRow& row) {
  return row.scope == Scope::kHome || row.scope == Scope::kPeer || row.scope == Scope::kCluster;
}

// Whether the caller has to show other credentials, or is known and not permitted.
bool IsUnknownCaller(Refusal refusal) {
  switch (refusal) {
    case Refusal::kPlaintext:
    case Refusal::kNoIdentity:
    case Refusal::kBadIdentity:
    case Refusal::kBadToken:
    case Refusal::kNumber:
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
    case Refusal::kNumber:
      return "number";
  }
  return "unknown";
}

Gate::Gate(Options options, ServerMetrics* metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      files_(std::make_shared<const GateFiles>()),
      numbers_(options_.secret) {}

void Gate::Replace(GateFiles files) {
  auto replaced = std::make_shared<const GateFiles>(std::move(files));
  MutexLock lock(&mu_);
  files_.swap(replaced);
}

void Gate::SetServers(uint32_t self, const std::vector<uint32_t>& servers) {
  std::vector<uint32_t> others;
  uint32_t home = self;
  for (const uint32_t server : servers) {
    home = std::min(home, server);
    if (server != self) others.push_back(server);
  }
  numbers_.SetServers(others);
  MutexLock lock(&mu_);
  cluster_ = {self, home};
}

std::optional<Gate::Cluster> Gate::cluster() const {
  MutexLock lock(&mu_);
  return cluster_;
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

absl::StatusOr<Identity> Gate::IdentityOf(const CallerFacts& facts, const GateFiles& files) const {
  if (!facts.encrypted) {
    return Refuse(Refusal::kPlaintext, "this server takes calls over TLS only");
  }
  if (facts.certified) {
    absl::StatusOr<Identity> identity = IdentityOfUris(facts.uris, options_.domain);
    if (identity.ok()) return identity;
    return Refuse(Refusal::kBadIdentity, identity.status().message());
  }
  if (facts.authorization.empty()) {
    return Refuse(Refusal::kNoIdentity,
                  "this server needs a client certificate or a bearer token, and the call has "
                  "neither");
  }
  absl::string_view token = facts.authorization[0];
  const bool bearer = facts.authorization.size() == 1 && absl::ConsumePrefix(&token, kBearer) &&
                      token.size() <= kTokenBytesMax;
  const Identity* const known = bearer ? files.tokens.Find(token) : nullptr;
  if (known != nullptr) return *known;
  return Refuse(Refusal::kBadToken, "the call's bearer token is not one of this server's");
}

absl::Status Gate::CheckHome(const MethodRow& row, uint32_t server) const {
  if (row.scope != Scope::kHome) return absl::OkStatus();
  const std::optional<Cluster> cluster = this->cluster();
  if (!cluster.has_value()) return ServersUnknown();
  if (server == cluster->home) return absl::OkStatus();
  return Refuse(Refusal::kNotHome,
                absl::StrCat("server ", server, " may not order ", row.method,
                             ": the home of this cluster is server ", cluster->home));
}

bool Gate::Looks(const MethodRow& row) const { return options_.secured || IsOfServers(row); }

Admission Gate::AdmitPlain(const MethodRow& row, const CallerFacts& facts) const {
  if (!IsOfServers(row)) return {};
  const std::optional<Cluster> cluster = this->cluster();
  if (!cluster.has_value()) return {ServersUnknown(), {}};
  // The home sends itself no orders, so one that comes over a connection is not of this cluster.
  if (row.scope == Scope::kHome && cluster->self == cluster->home) {
    return {Refuse(Refusal::kNotHome, absl::StrCat("this server is the home of its cluster and "
                                                   "takes no order of another, such as ",
                                                   row.method)),
            {}};
  }
  if (facts.peer_numbers.empty()) return {CheckBare(row), {}};
  std::optional<uint32_t> sender;
  if (facts.peer_numbers.size() == 1) sender = numbers_.SenderOf(facts.peer_numbers[0]);
  if (sender.has_value()) return {CheckHome(row, *sender), {.peer = sender}};
  return {Refuse(Refusal::kNumber, absl::StrCat("the number of this call of ", row.method,
                                                " is not one that this server has told another; "
                                                "say Hello first")),
          {}};
}

// A call without a number comes from a stranger, or from a release before numbers.
absl::Status Gate::CheckBare(const MethodRow& row) const {
  using Kind = PeerNumbers::Kind;
  const bool order = row.scope == Scope::kHome;
  const std::optional<Cluster> cluster = this->cluster();
  const auto from = [&](Kind kind) {
    return order ? numbers_.KindOf(cluster->home) == kind : numbers_.AnyIs(kind);
  };
  if (from(Kind::kWithout)) return absl::OkStatus();
  if (from(Kind::kUnheard)) return NotHeardYet();
  return Refuse(Refusal::kNumber,
                absl::StrCat("this call of ", row.method,
                             " carries no number, so it comes from no server of this cluster"));
}

Admission Gate::Admit(const MethodRow& row, const CallerFacts& facts) const {
  if (row.scope == Scope::kOpen) return {};
  if (!options_.secured) return AdmitPlain(row, facts);
  const std::shared_ptr<const GateFiles> files = this->files();
  absl::StatusOr<Identity> identity = IdentityOf(facts, *files);
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
  return CheckHome(row, identity.server);
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

absl::Status Gate::CheckVoter(const Caller& caller, uint32_t server) const {
  if (options_.secured) return CheckServer(caller, server);
  if (caller.peer == server) return absl::OkStatus();
  if (caller.peer.has_value()) {
    return Refuse(Refusal::kWrongServer,
                  absl::StrCat("server ", *caller.peer, " votes as server ", server,
                               "; its number lets it vote as itself only"));
  }
  switch (numbers_.KindOf(server)) {
    case PeerNumbers::Kind::kWithout:
      return absl::OkStatus();
    case PeerNumbers::Kind::kUnheard:
      return NotHeardYet();
    case PeerNumbers::Kind::kNumbered:
      break;
  }
  return Refuse(Refusal::kNumber, absl::StrCat("this vote of server ", server,
                                               " carries no number, so another has sent it"));
}

}  // namespace ballast::server
