#include "server/security/peer_numbers.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/security/sha256.h"

namespace ballast::server {

bool PeerNumbers::Peer::known() const { return !hash.empty() && SameSecret(Sha256(number), hash); }

void PeerNumbers::SetServers(const std::vector<uint32_t>& servers) {
  MutexLock lock(&mu_);
  for (const uint32_t server : servers) peers_[server] = {};
}

void PeerNumbers::SetAsk(Ask ask) {
  MutexLock lock(&mu_);
  ask_ = std::move(ask);
}

// --- To other servers ---------------------------------------------------------------------------

std::string PeerNumbers::NumberFor(uint32_t server) const {
  std::string text = secret_;
  for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(server >> shift & 0xff);
  return Sha256(text).substr(0, kSecretBytes);
}

std::string PeerNumbers::HashFor(uint32_t server) const { return Sha256(NumberFor(server)); }

std::optional<uint32_t> PeerNumbers::SenderOf(absl::string_view header) const {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(header, ' ');
  uint32_t server = 0;
  if (!absl::SimpleAtoi(parts.first, &server)) return std::nullopt;
  const std::string right = absl::BytesToHexString(NumberFor(server));
  if (!SameSecret(parts.second, right)) return std::nullopt;
  return server;
}

PeerNumbers::Kind PeerNumbers::KindOf(uint32_t server) const {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  return peer == peers_.end() ? Kind::kNumbered : peer->second.kind;
}

bool PeerNumbers::AnyIs(Kind kind) const {
  MutexLock lock(&mu_);
  for (const auto& [server, peer] : peers_) {
    if (peer.kind == kind) return true;
  }
  return false;
}

// --- From other servers -------------------------------------------------------------------------

void PeerNumbers::Told(uint32_t server, absl::string_view number, absl::string_view held_hash) {
  if (number.size() != kSecretBytes) return;
  Ask ask;
  {
    MutexLock lock(&mu_);
    const auto peer = peers_.find(server);
    if (peer == peers_.end()) return;
    // A stranger's number never replaces a number known to be right.
    if (!peer->second.known()) peer->second.number = std::string(number);
    const bool settled = peer->second.known() && Sha256(number) == peer->second.hash;
    if (settled && held_hash == HashFor(server)) return;
    ask = ask_;
  }
  if (ask) ask(server);
}

void PeerNumbers::Answered(uint32_t server, absl::string_view hash) {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  if (peer == peers_.end()) return;
  peer->second.kind = hash.empty() ? Kind::kWithout : Kind::kNumbered;
  peer->second.hash = std::string(hash);
}

void PeerNumbers::Doubt(uint32_t server) {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  if (peer != peers_.end()) peer->second.hash.clear();
}

std::optional<std::string> PeerNumbers::HeaderTo(uint32_t server, uint32_t self) const {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  if (peer == peers_.end() || peer->second.kind == Kind::kUnheard) return std::nullopt;
  if (peer->second.kind == Kind::kWithout) return std::string();
  if (!peer->second.known()) return std::nullopt;
  return absl::StrCat(self, " ", absl::BytesToHexString(peer->second.number));
}

std::string PeerNumbers::HeldHash(uint32_t server) const {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  return peer != peers_.end() && peer->second.known() ? peer->second.hash : std::string();
}

}  // namespace ballast::server
