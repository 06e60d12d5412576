#include "server/peer/peer_sightings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"

namespace ballast::server {
namespace {

// In plaintext anybody may say Hello, so these limits bound the memory for strangers' claims.
constexpr size_t kMostServers = 256;
constexpr size_t kMostSightings = 64;
constexpr size_t kLongestAddress = 256;
// After its end a process may still answer once, so one turn proves nothing.
constexpr int kTurns = 2;

std::string Ids(const std::vector<uint32_t>& ids) {
  return ids.size() > 16 ? absl::StrCat(ids.size(), " servers") : absl::StrJoin(ids, ", ");
}

}  // namespace

void PeerSightings::SetServers(uint32_t self, const std::vector<ServerAddress>& servers) {
  MutexLock lock(&mu_);
  self_ = self;
  own_ = servers;
  own_ids_.clear();
  for (const ServerAddress& server : servers) own_ids_.push_back(server.id);
}

void PeerSightings::Fill(v1::PeerHello* hello) const {
  MutexLock lock(&mu_);
  hello->mutable_servers()->Assign(own_ids_.begin(), own_ids_.end());
  hello->set_address(AddressOf(self_));
}

std::string PeerSightings::AddressOf(uint32_t server) const {
  for (const ServerAddress& own : own_) {
    if (own.id == server) return own.address;
  }
  return "";
}

PeerSightings::Sighting* PeerSightings::At(uint32_t server) {
  if (own_ids_.empty() || server == self_) return nullptr;
  const auto known = sightings_.find(server);
  if (known != sightings_.end()) return &known->second;
  std::erase_if(sightings_, [this](const auto& entry) {
    return !Fresh(entry.second.seen) && !Fresh(entry.second.other_seen);
  });
  return sightings_.size() < kMostSightings ? &sightings_[server] : nullptr;
}

void PeerSightings::Compare(const v1::PeerHello& hello) {
  Sighting* const sighting = At(hello.id());
  const auto count = static_cast<size_t>(hello.servers_size());
  if (sighting == nullptr || count == 0 || count > kMostServers) return;
  std::vector<uint32_t> theirs(hello.servers().begin(), hello.servers().end());
  sighting->seen = clock_->Now();
  if (std::exchange(sighting->servers, std::move(theirs)) == sighting->servers) return;
  if (Differs(hello.id(), *sighting))
    BALLAST_LOG_EVERY(30, WARN) << ListsText(hello.id(), *sighting);
}

void PeerSightings::OnRequest(const v1::PeerHello& hello) {
  MutexLock lock(&mu_);
  Compare(hello);
  Sighting* const sighting = At(hello.id());
  if (sighting == nullptr || hello.address().size() > kLongestAddress) return;
  if (sighting->right == hello.incarnation()) return;
  if (sighting->other != hello.incarnation()) {
    sighting->other = hello.incarnation();
    sighting->other_address = hello.address();
    sighting->answered = false;
    sighting->turns = 0;
  }
  sighting->other_seen = clock_->Now();
  if (!std::exchange(sighting->answered, false)) return;
  if (++sighting->turns == kTurns) BALLAST_LOG(ERROR) << TwiceText(hello.id(), *sighting);
}

void PeerSightings::OnAnswer(const v1::PeerHello& hello) {
  MutexLock lock(&mu_);
  Compare(hello);
  Sighting* const sighting = At(hello.id());
  if (sighting == nullptr) return;
  sighting->right = hello.incarnation();
  sighting->answered = sighting->other != sighting->right;
  if (!sighting->answered) sighting->turns = 0;  // It was restarted.
}

// At least one of the two must list the other: an unrelated cluster does not matter here.
bool PeerSightings::Differs(uint32_t server, const Sighting& sighting) const {
  const auto has = [](const std::vector<uint32_t>& ids, uint32_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return Fresh(sighting.seen) && !sighting.servers.empty() && sighting.servers != own_ids_ &&
         (has(own_ids_, server) || has(sighting.servers, self_));
}

bool PeerSightings::IsTwice(const Sighting& sighting) const {
  return sighting.turns >= kTurns && Fresh(sighting.other_seen);
}

std::string PeerSightings::ListsText(uint32_t server, const Sighting& sighting) const {
  return absl::StrCat("cluster.peers of server ", server, " has ", Ids(sighting.servers),
                      ", and that of server ", self_, " has ", Ids(own_ids_),
                      ": normal while a cluster grows and its servers are restarted one after the "
                      "other; else give all servers the same list");
}

std::string PeerSightings::TwiceText(uint32_t server, const Sighting& sighting) const {
  const std::string& at = sighting.other_address;
  return absl::StrCat("two processes are server ", server, ": one answers at ", AddressOf(server),
                      ", as cluster.peers says, and another one says Hello",
                      at.empty() ? "" : absl::StrCat(" and is at ", at),
                      ": stop the one that should not be there, or give it an id of its own");
}

std::vector<std::string> PeerSightings::Problems() const {
  MutexLock lock(&mu_);
  std::vector<std::string> problems;
  for (const auto& [server, sighting] : sightings_) {
    if (IsTwice(sighting)) problems.push_back(TwiceText(server, sighting));
    if (Differs(server, sighting)) problems.push_back(ListsText(server, sighting));
  }
  return problems;
}

}  // namespace ballast::server
