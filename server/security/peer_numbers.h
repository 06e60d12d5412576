// The numbers by which servers without security know each other's orders and votes (decision 047).
// Each process makes a secret at its start and derives from it one number for each other server:
//
//   number for server S = the first 16 bytes of SHA-256(secret, S as 4 bytes, lowest first)
//
// A server tells S its number in a Hello to the address that the configuration has for S, and
// nowhere else. A call that carries the number comes from S, as far as that address is S's. The
// answers to the Hellos of S have the number's hash, so that a stranger's number in the name of a
// server is not taken for that server's.
// Comes from: the gate, which owns it. Goes to: the Peer service and the calls to other servers.
// Thread safety: thread-safe; `ask` runs on the caller's thread, without a lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/base/sync.h"
#include "common/security/secret.h"

namespace ballast::server {

// The header of a call with a number: "<id of the server that calls> <32 hex digits>".
inline constexpr char kPeerNumberHeader[] = "ballast-peer-number";

class PeerNumbers {
 public:
  // Says Hello to a server as soon as that may be.
  using Ask = std::function<void(uint32_t server)>;

  // State learnt from a server's answers to this server's Hellos.
  enum class Kind : uint8_t {
    kUnheard,   // none came yet
    kWithout,   // it is of a release without numbers
    kNumbered,  // it tells and carries numbers
  };

  // `secret` has kSecretBytes, new for each process.
  explicit PeerNumbers(std::string secret) : secret_(std::move(secret)) {}
  PeerNumbers(const PeerNumbers&) = delete;
  PeerNumbers& operator=(const PeerNumbers&) = delete;

  // The other servers of the cluster. Hellos from others, or before this call, are dropped.
  void SetServers(const std::vector<uint32_t>& servers);
  // `ask` is called from now on; null ends that, after the calls under way.
  void SetAsk(Ask ask);

  // --- To other servers ---

  // The number for `server`, 16 bytes: for a Hello to its configured address only.
  std::string NumberFor(uint32_t server) const;
  // Its SHA-256, 32 bytes. No secret.
  std::string HashFor(uint32_t server) const;
  // The server whose number a call carries; nullopt: the header is another text, or its number is
  // not the one that this server has told that server. Compares in constant time.
  std::optional<uint32_t> SenderOf(absl::string_view header) const;
  Kind KindOf(uint32_t server) const;
  // Whether one of the servers is of that kind.
  bool AnyIs(Kind kind) const;

  // --- From other servers ---

  // A Hello in the name of `server` has come, with its number for this server, and with the hash
  // of the number that it carries itself; each may be empty. If either is wrong, asks the server
  // itself: at its own address it says the truth.
  void Told(uint32_t server, absl::string_view number, absl::string_view held_hash);
  // A Hello to its address was answered, with HashFor of this server; empty: a release without.
  void Answered(uint32_t server, absl::string_view hash);
  // A call to it failed or was refused: it may be another process by now.
  void Doubt(uint32_t server);
  // The header of a call to `server`; empty for a release without numbers; nullopt: it is not known
  // yet whether the number is that of the process at that address, so say Hello first.
  std::optional<std::string> HeaderTo(uint32_t server, uint32_t self) const;
  // For a Hello: the hash of the number that calls to `server` carry; empty: none.
  std::string HeldHash(uint32_t server) const;

 private:
  struct Peer {
    Kind kind = Kind::kUnheard;
    std::string number;  // told last in its name
    std::string hash;    // of the number of the process at its address; empty: not known

    bool known() const;
  };

  const std::string secret_;

  mutable Mutex mu_;
  std::map<uint32_t, Peer> peers_ ABSL_GUARDED_BY(mu_);
  Ask ask_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
