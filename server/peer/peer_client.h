// The client of the other servers of the cluster: votes, creation of jobs, and a heartbeat that
// detects lost servers.
// Comes from: the job directory (PeerLink) and RoundEngine (VoteSink). Goes to: peer_service of the
// peers.
// Thread safety: any thread. Callbacks run on a thread of the transport or on the caller's; no lock
// is held then.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/threads/executor.h"
#include "server/jobs/peer_calls.h"
#include "server/security/peer_numbers.h"
#include "server/stream/peer_transport.h"

namespace ballast::server {

class PeerSightings;

struct PeerLinkConfig {
  uint32_t self = 0;
  uint64_t incarnation = 0;            // of this process
  std::vector<ServerAddress> servers;  // of the cluster; self is skipped
  std::chrono::nanoseconds heartbeat_interval = std::chrono::milliseconds(500);
  std::chrono::nanoseconds report_after = std::chrono::milliseconds(2500);
  std::chrono::nanoseconds create_timeout = std::chrono::seconds(30);  // of calls with a plan, Seal
  int max_message_bytes = 16 << 20;                                    // of a reply
  // For a server without security; null: calls carry none. Outlives the client.
  PeerNumbers* numbers = nullptr;
  PeerSightings* sightings = nullptr;  // of Hellos; may be null; outlives the client
};

struct PeerState {
  uint32_t id = 0;
  std::string address;
  bool reachable = false;  // and does not report a job as still starting
  std::string admin;       // "host:port" of its admin port, as reported; empty: unknown
};

class PeerClient : public PeerLink, public VoteSink {
 public:
  // A peer has become unreachable.
  using LostCallback = std::function<void(uint32_t server, const std::string& why)>;

  // `executor` and `clock` outlive the result.
  static std::shared_ptr<PeerClient> Create(const PeerLinkConfig& config, Executor* executor,
                                            const Clock* clock,
                                            std::unique_ptr<PeerTransport> transport);

  // A vote received in answer to one of ours, or STATE_LOST: see RoundEngine::PeerVote.
  using VoteCallback = std::function<void(uint64_t job, uint32_t epoch, uint64_t round,
                                          const absl::StatusOr<Vote>& vote)>;

  // Starts the heartbeat. `lost` may be called again for a peer that came back in between.
  virtual void Start(LostCallback lost, VoteCallback voted) = 0;
  // Stops the heartbeat, cancels every call (their callbacks get CANCELLED) and waits for them.
  virtual void Stop() = 0;
  virtual std::vector<PeerState> Peers() const = 0;
};

}  // namespace ballast::server
