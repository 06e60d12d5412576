// Signs in Hellos of a misconfigured cluster: servers whose cluster.peers differ, and two processes
// with the id of one server. Nothing is refused because of them: a growing cluster passes through
// different lists while its servers are restarted.
// Comes from: peer_service (requests), PeerHeartbeat (answers). Goes to: operators, one metric.
// Thread safety: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "ballast/v1/peer.pb.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/jobs/trainer_calls.h"

namespace ballast::server {

class PeerSightings {
 public:
  // `memory`: how long the findings of a Hello count. `clock` outlives this.
  PeerSightings(const Clock* clock, std::chrono::nanoseconds memory)
      : clock_(clock), memory_(memory) {}
  PeerSightings(const PeerSightings&) = delete;
  PeerSightings& operator=(const PeerSightings&) = delete;

  // The servers of this cluster, by ascending id. Before this call nothing is recorded.
  void SetServers(uint32_t self, const std::vector<ServerAddress>& servers);
  // Adds to this server's Hello the fields that others compare.
  void Fill(v1::PeerHello* hello) const;
  // A Hello received in the name of server `hello.id()`.
  void OnRequest(const v1::PeerHello& hello);
  // The answer to a Hello sent to that server's address in cluster.peers.
  void OnAnswer(const v1::PeerHello& hello);
  // One sentence each, for operators; by ascending id.
  std::vector<std::string> Problems() const;

 private:
  struct Sighting {
    std::vector<uint32_t> servers;  // in its cluster.peers
    std::chrono::nanoseconds seen{0};
    uint64_t right = 0;  // incarnation of the process at the configured address, by its answer
    // A process that says Hello but differs from the one at the configured address. A restarted
    // server looks the same until it answers, so only processes that take turns count.
    uint64_t other = 0;  // its incarnation; 0: none
    std::string other_address;
    std::chrono::nanoseconds other_seen{0};
    bool answered = false;  // the one at the address has answered since
    int turns = 0;
  };

  Sighting* At(uint32_t server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Compare(const v1::PeerHello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Fresh(std::chrono::nanoseconds seen) const { return clock_->Now() - seen < memory_; }
  bool Differs(uint32_t server, const Sighting& sighting) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsTwice(const Sighting& sighting) const;
  std::string ListsText(uint32_t server, const Sighting& sighting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string TwiceText(uint32_t server, const Sighting& sighting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string AddressOf(uint32_t server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  const std::chrono::nanoseconds memory_;
  mutable Mutex mu_;
  uint32_t self_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<ServerAddress> own_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> own_ids_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Sighting> sightings_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
