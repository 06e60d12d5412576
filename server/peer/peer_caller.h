// Calls to the other servers of this cluster, by their ids, with the numbers that show their
// sender. Comes from: PeerClient, its PeerHeartbeat and its PeerVotes. Goes to: peer_service of the
// peers, through a PeerTransport. Thread safety: thread-safe. A callback runs on a thread of the
// transport or on the caller's; no lock is held then.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/bytes/payload.h"
#include "proto/convert/frame_codec.h"
#include "server/peer/peer_client.h"
#include "server/stream/peer_transport.h"

namespace ballast::server {

// Time between two attempts of a call not taken by a peer.
constexpr std::chrono::milliseconds kPeerRetryDelay(50);
// For a call that reads or writes the whole state; the death of a peer ends it earlier.
constexpr std::chrono::hours kWholeStateTimeout(24);

// Runs `task` after `delay`, unless its PeerClient no longer exists by then. False: the executor is
// shutting down.
using PeerTimer = std::function<bool(std::chrono::nanoseconds delay, std::function<void()> task)>;

// Whether the same call may succeed later: the peer did not answer, or not in time.
bool MayPass(const absl::Status& status);

class PeerCaller {
 public:
  using Done = PeerTransport::Done;

  // `config` outlives this.
  PeerCaller(const PeerLinkConfig& config, std::unique_ptr<PeerTransport> transport);
  PeerCaller(const PeerCaller&) = delete;
  PeerCaller& operator=(const PeerCaller&) = delete;
  ~PeerCaller() { Stop(); }

  // Calls `done` once: FAILED_PRECONDITION SERVER_REMOVED for a server outside this cluster, else
  // with the outcome of the call, as PeerTransport. With PeerLinkConfig::numbers the call
  // carries a number, and sends a Hello first if it has none for the server; UNAVAILABLE RECOVERING
  // while the server has sent none, or refuses it: IsStillStarting.
  void Call(uint32_t server, const PeerCallOptions& options, const Payload& request, Done done);
  // A Hello with this server's id, incarnation and protocol versions; report_after is its timeout.
  void SayHello(uint32_t server, bool wait_for_ready, Done done);
  // A call that takes as long as the peer needs. The wait for a connection is limited, but a peer
  // started just now must not make it fail: a Hello waits for the connection first.
  void CallOnceConnected(uint32_t server, const char* method, const Payload& request, Done done);

  // Parses the bytes of a reply as a message; else the call's error, or INVALID_ARGUMENT as
  // ParseMessage.
  template <typename Reply>
  absl::Status Parse(const absl::StatusOr<Payload>& answer, Reply* reply) const {
    if (!answer.ok()) return answer.status();
    return ParseMessage(*answer, static_cast<size_t>(config_.max_message_bytes), reply);
  }

  // The address of `server`, a peer of this cluster.
  const std::string& AddressOf(uint32_t server) const { return addresses_.at(server); }

  // As PeerTransport::Stop.
  void Stop();
  // True as soon as Stop has begun.
  bool stopping() const { return stopping_; }

 private:
  void Send(uint32_t server, const PeerCallOptions& options, const Payload& request, Done done);
  void SendNumbered(uint32_t server, PeerCallOptions options, const std::string& number,
                    const Payload& request, Done done);
  // Converts `status` of a call with a number: a server that refuses the number is a new process.
  absl::Status AfterNumbered(uint32_t server, const absl::Status& status);

  const PeerLinkConfig& config_;
  std::map<uint32_t, std::string> addresses_;  // constant after construction
  const std::unique_ptr<PeerTransport> transport_;
  std::atomic<bool> stopping_{false};
};

}  // namespace ballast::server
