// Tracks which peers are reachable: a Hello to each of them every heartbeat_interval, and a report
// when a peer that answered stops answering.
// Comes from: PeerClient. Goes to: PeerCaller; reports go to the job directory.
// Thread safety: thread-safe. Callbacks run on the threads of PeerCaller and of the timer; no lock
// is held then.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ballast/v1/peer.pb.h"
#include "common/base/clock.h"
#include "common/base/sync.h"
#include "server/peer/peer_caller.h"
#include "server/peer/peer_client.h"

namespace ballast::server {

class PeerHeartbeat {
 public:
  // `config`, `caller` and `clock` outlive this.
  PeerHeartbeat(const PeerLinkConfig& config, PeerCaller* caller, const Clock* clock,
                PeerTimer after);
  PeerHeartbeat(const PeerHeartbeat&) = delete;
  PeerHeartbeat& operator=(const PeerHeartbeat&) = delete;

  // Starts asking. The heartbeat ends when `caller` stops.
  void Start(PeerClient::LostCallback lost);
  std::vector<PeerState> Peers() const;
  // Sends a Hello to a peer, unless one is under way or this was called less than kPeerRetryDelay
  // ago: any stranger's Hello may cause the call. The next regular Hello is sent in any case.
  void AskNow(uint32_t server);
  // Records a peer's answer to the newest call about a plan: whether the job still starts there.
  void SetStarts(uint32_t server, bool starts);
  // Reports a lost peer if it was reachable; with `always` also if it never was.
  void Lost(uint32_t server, const std::string& why, bool always = false);

 private:
  struct Peer {
    bool reachable = false;
    bool starts = false;       // as SetStarts
    bool asking = false;       // a Hello is under way
    bool asked_twice = false;  // the Hello before that found no connection
    std::chrono::nanoseconds last_heard{0};
    std::chrono::nanoseconds ask_now_from{0};  // before that AskNow does nothing
    uint64_t incarnation = 0;
    std::string admin;  // as PeerState's
  };

  void Beat();
  // Unless a Hello is under way.
  void Ask(uint32_t server);
  void OnHello(uint32_t server, const absl::StatusOr<Payload>& answer);
  void Heard(uint32_t server, const v1::PeerHello& hello);
  void NotHeard(uint32_t server, const absl::Status& status);

  const PeerLinkConfig& config_;
  PeerCaller* const caller_;
  const Clock* const clock_;
  const PeerTimer after_;

  mutable Mutex mu_;
  std::map<uint32_t, Peer> peers_ ABSL_GUARDED_BY(mu_);  // the keys are constant
  PeerClient::LostCallback lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ballast::server
