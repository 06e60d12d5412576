// The gate: decides about each call before a byte of its message is read, by the table of methods
// and the transport's knowledge of the other side.
//
//   connection -> identity: the one URI of its certificate, or that of the call's bearer token
//   identity   -> not denied, a role of the method's row, and the home where the row says so
//
// Checks that need the message (whose job it is, which server it names) are the services', with the
// Caller from the gate. Without security the gate lets in every call but those of servers, which
// carry numbers (peer_numbers.h).
// Comes from: GenericServer. Goes to: the services, as Caller. Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"
#include "common/metrics/metrics.h"
#include "common/security/caller.h"
#include "server/security/files.h"
#include "server/security/method_table.h"
#include "server/security/peer_numbers.h"

namespace ballast::server {

// The transport's facts about the other side of a call.
struct CallerFacts {
  bool encrypted = false;         // TLS
  bool certified = false;         // it has shown a certificate that the server's CA vouches for
  std::vector<std::string> uris;  // the URIs of that certificate
  // Values of the call's headers `authorization` and kPeerNumberHeader.
  std::vector<std::string> authorization;
  std::vector<std::string> peer_numbers;
};

// Why a call was refused: the values of the metric's label.
enum class Refusal : uint8_t {
  kPlaintext,    // a server with security got a call without TLS
  kNoIdentity,   // neither a certificate nor a token
  kBadIdentity,  // a certificate without an identity of this cluster
  kBadToken,     // a header without a bearer token, or an unknown token
  kDenied,       // the identity is on the deny-list
  kRole,         // the method is for other roles
  kNotHome,      // an order of a server other than the home
  kWrongServer,  // a message names another server than the one that calls
  kNumber,       // without security: a server's call without the number that it should carry
};
const char* RefusalName(Refusal refusal);

// The gate's verdict on a call.
struct Admission {
  absl::Status status;  // OK: the call is let in
  Caller caller;        // as far as it is known, also of a refused call
};

class Gate {
 public:
  struct Options {
    bool secured = false;              // false: every call is let in, as without a gate
    std::string domain;                // the trust domain
    std::string secret = NewSecret();  // of the numbers
  };

  // `metrics` may be null, and outlives this.
  Gate(Options options, ServerMetrics* metrics);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  bool secured() const { return options_.secured; }
  const std::string& domain() const { return options_.domain; }

  // Takes the place of all tokens and denied identities, from the next call on.
  void Replace(GateFiles files);
  // Those in force. Not null.
  std::shared_ptr<const GateFiles> files() const;
  // This server's id, and those of all servers of its cluster, once they are known; orders are
  // refused before. The lowest is the home's.
  void SetServers(uint32_t self, const std::vector<uint32_t>& servers);
  // Null with security: certificates take their place.
  PeerNumbers* numbers() { return options_.secured ? nullptr : &numbers_; }

  // Whether Admit looks at the connection of a call of this method.
  bool Looks(const MethodRow& row) const;
  // Decides about a call. UNAUTHENTICATED NO_IDENTITY: the caller has to show another certificate,
  // token or number; PERMISSION_DENIED NOT_PERMITTED: this identity may not make the call;
  // UNAVAILABLE RECOVERING: an order before the servers are known. Counts refusals.
  Admission Admit(const MethodRow& row, const CallerFacts& facts) const;

  // Whether a caller let in earlier would still be: PERMISSION_DENIED when its identity is denied
  // by now. For calls that last.
  absl::Status StillAllowed(const Caller& caller) const;

  // For a name found in the message: a caller may only speak for itself. PERMISSION_DENIED
  // NOT_PERMITTED when a server names `server` and is another one.
  absl::Status CheckServer(const Caller& caller, uint32_t server) const;
  // The same for a vote; without security also the errors of Admit about numbers.
  absl::Status CheckVoter(const Caller& caller, uint32_t server) const;

  // Counts a refusal.
  void Count(Refusal refusal) const;

 private:
  struct Cluster {
    uint32_t self = 0;
    uint32_t home = 0;
  };

  absl::StatusOr<Identity> IdentityOf(const CallerFacts& facts, const GateFiles& files) const;
  // The decisions that depend on the caller's identity.
  absl::Status Check(const MethodRow& row, const Identity& identity, const GateFiles& files) const;
  absl::Status CheckHome(const MethodRow& row, uint32_t server) const;
  // Without security.
  Admission AdmitPlain(const MethodRow& row, const CallerFacts& facts) const;
  absl::Status CheckBare(const MethodRow& row) const;
  absl::Status Refuse(Refusal refusal, absl::string_view why) const;
  std::optional<Cluster> cluster() const;

  const Options options_;
  ServerMetrics* const metrics_;

  mutable Mutex mu_;
  std::shared_ptr<const GateFiles> files_ ABSL_GUARDED_BY(mu_);
  std::optional<Cluster> cluster_ ABSL_GUARDED_BY(mu_);
  PeerNumbers numbers_;
};

}  // namespace ballast::server
