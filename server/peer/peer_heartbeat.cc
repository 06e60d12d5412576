#include "server/peer/peer_heartbeat.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/text/address.h"
#include "common/text/units.h"
#include "proto/convert/job_convert.h"
#include "proto/convert/status_convert.h"
#include "server/peer/peer_sightings.h"

namespace ballast::server {
namespace {

// FAILED_PRECONDITION if another server listens there, or it speaks none of our versions.
absl::Status CheckHello(uint32_t server, const v1::PeerHello& hello) {
  if (hello.id() != server) {
    return absl::FailedPreconditionError(absl::StrCat("server ", hello.id(), " listens there, not ",
                                                      server, "; correct the list of peers"));
  }
  return ChooseProtocol(hello.protocol(), absl::StrCat("server ", server)).status();
}

// The admin port's address reported by a peer; empty if it is invalid.
std::string AdminOf(const v1::PeerHello& hello) {
  return ParseEndpoint(hello.admin()).ok() ? hello.admin() : "";
}

}  // namespace

PeerHeartbeat::PeerHeartbeat(const PeerLinkConfig& config, PeerCaller* caller, const Clock* clock,
                             PeerTimer after)
    : config_(config), caller_(caller), clock_(clock), after_(std::move(after)) {
  for (const ServerAddress& server : config.servers) {
    if (server.id != config.self) peers_[server.id] = {};
  }
}

void PeerHeartbeat::Start(PeerClient::LostCallback lost) {
  {
    MutexLock lock(&mu_);
    lost_ = std::move(lost);
  }
  Beat();
}

std::vector<PeerState> PeerHeartbeat::Peers() const {
  MutexLock lock(&mu_);
  std::vector<PeerState> states;
  for (const auto& [id, peer] : peers_) {
    states.push_back({id, caller_->AddressOf(id), peer.reachable && !peer.starts, peer.admin});
  }
  return states;
}

void PeerHeartbeat::SetStarts(uint32_t server, bool starts) {
  MutexLock lock(&mu_);
  const auto peer = peers_.find(server);
  if (peer != peers_.end()) peer->second.starts = starts;
}

void PeerHeartbeat::Beat() {
  if (caller_->stopping()) return;
  std::vector<uint32_t> ask;
  std::vector<uint32_t> silent;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, peer] : peers_) {
      if (peer.reachable && clock_->Now() - peer.last_heard >= config_.report_after) {
        silent.push_back(id);
      }
      if (!peer.asking) ask.push_back(id);
    }
  }
  const std::string why = absl::StrCat("no answer for ", FormatDuration(config_.report_after));
  for (const uint32_t server : silent) Lost(server, why);
  for (const uint32_t server : ask) Ask(server);
  after_(config_.heartbeat_interval, [this] { Beat(); });
}

void PeerHeartbeat::AskNow(uint32_t server) {
  {
    MutexLock lock(&mu_);
    const auto peer = peers_.find(server);
    if (peer == peers_.end() || peer->second.asking) return;
    if (clock_->Now() < peer->second.ask_now_from) return;
    peer->second.ask_now_from = clock_->Now() + kPeerRetryDelay;
  }
  Ask(server);
}

void PeerHeartbeat::Ask(uint32_t server) {
  {
    MutexLock lock(&mu_);
    if (std::exchange(peers_.at(server).asking, true)) return;
  }
  caller_->SayHello(server, false, [this, server](const absl::StatusOr<Payload>& answer) {
    OnHello(server, answer);
  });
}

void PeerHeartbeat::OnHello(uint32_t server, const absl::StatusOr<Payload>& answer) {
  {
    MutexLock lock(&mu_);
    peers_.at(server).asking = false;
  }
  if (caller_->stopping()) return;
  if (!answer.ok()) return NotHeard(server, answer.status());
  v1::PeerHello hello;
  absl::Status checked = caller_->Parse(answer, &hello);
  if (checked.ok()) checked = CheckHello(server, hello);
  if (checked.ok() && config_.sightings != nullptr) config_.sightings->OnAnswer(hello);
  if (checked.ok()) return Heard(server, hello);
  BALLAST_LOG_EVERY(30, ERROR, LogField("server", server),
                    LogField("address", caller_->AddressOf(server)))
      << checked;
}

void PeerHeartbeat::Heard(uint32_t server, const v1::PeerHello& hello) {
  bool restarted = false;
  {
    MutexLock lock(&mu_);
    const Peer& peer = peers_.at(server);
    restarted = peer.reachable && peer.incarnation != hello.incarnation();
  }
  if (restarted) Lost(server, "it was restarted");
  bool found = false;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    found = !std::exchange(peer.reachable, true);
    peer.incarnation = hello.incarnation();
    peer.admin = AdminOf(hello);
    peer.last_heard = clock_->Now();
    peer.asked_twice = false;
  }
  if (found) BALLAST_LOG(INFO, LogField("server", server)) << "peer is reachable";
}

void PeerHeartbeat::NotHeard(uint32_t server, const absl::Status& status) {
  // A peer whose memory is full is alive, and asking again at once adds to its load.
  if (BrokenOffForMemory(status)) return;
  bool again = false;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    // Beat judges silence; a broken connection is retried once at once.
    if (!peer.reachable || status.code() != absl::StatusCode::kUnavailable) return;
    again = !std::exchange(peer.asked_twice, true);
  }
  if (again) {
    Ask(server);
  } else {
    Lost(server, absl::StrCat("its connection broke: ", status.message()));
  }
}

void PeerHeartbeat::Lost(uint32_t server, const std::string& why, bool always) {
  const bool stopping = caller_->stopping();
  PeerClient::LostCallback lost;
  {
    MutexLock lock(&mu_);
    Peer& peer = peers_.at(server);
    peer.asked_twice = false;
    const bool was_reachable = std::exchange(peer.reachable, false);
    if (stopping || (!was_reachable && !always)) return;
    lost = lost_;
  }
  BALLAST_LOG(WARN, LogField("server", server)) << "peer lost: " << why;
  if (lost) lost(server, why);
}

}  // namespace ballast::server
