// Unary calls to the other servers: one connection to each, and the set of calls under way.
// Comes from: PeerClient, its PeerHeartbeat and its PeerVotes. Goes to: peer_service of the peers.
// Thread safety: thread-safe. A callback runs on the thread that polls the completion queue or on
// the caller's; no lock is held then.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/base/sync.h"
#include "common/threads/executor.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/convert/grpc_message.h"
#include "server/peer/peer_client.h"

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

// Options of a call in addition to its request.
struct PeerCallOptions {
  const char* method = nullptr;
  std::chrono::nanoseconds timeout{0};
  bool wait_for_ready = false;  // wait for a connection instead of failing at once
};

class PeerCaller {
 public:
  // `reply` is empty unless `status` is OK.
  using Done = std::function<void(const absl::Status& status, const grpc::ByteBuffer& reply)>;

  // `config` outlives this. `queue`: as PeerClient::Create.
  PeerCaller(const PeerLinkConfig& config, grpc::CompletionQueue* queue);
  PeerCaller(const PeerCaller&) = delete;
  PeerCaller& operator=(const PeerCaller&) = delete;
  ~PeerCaller();

  // Calls `done` once: FAILED_PRECONDITION SERVER_REMOVED for a server outside this cluster,
  // CANCELLED after Stop, else with the outcome of the call. With PeerLinkConfig::numbers the call
  // carries a number, and sends a Hello first if it has none for the server; UNAVAILABLE RECOVERING
  // while the server has sent none, or refuses it: IsStillStarting.
  void Call(uint32_t server, const PeerCallOptions& options, const grpc::ByteBuffer& request,
            Done done);
  // A Hello with this server's id, incarnation and protocol versions; report_after is its timeout.
  void SayHello(uint32_t server, bool wait_for_ready, Done done);
  // A call that takes as long as the peer needs. The wait for a connection is limited, but a peer
  // started just now must not make it fail: a Hello waits for the connection first.
  void CallOnceConnected(uint32_t server, const char* method, const grpc::ByteBuffer& request,
                         Done done);

  // Parses the bytes of a reply as a message. INVALID_ARGUMENT as ParseMessage.
  template <typename Reply>
  absl::Status Parse(const grpc::ByteBuffer& bytes, Reply* reply) const {
    return ParseMessage(bytes, static_cast<size_t>(config_.max_message_bytes), reply);
  }

  // The address of `server`, a peer of this cluster.
  const std::string& AddressOf(uint32_t server) const { return peers_.at(server).address; }

  // Cancels every call (its callback gets CANCELLED), and waits for all of them. Idempotent.
  void Stop();
  // True as soon as Stop has begun.
  bool stopping() const;

 private:
  struct Peer {
    std::string address;
    std::unique_ptr<grpc::GenericStub> connection;
  };
  struct UnderWay;

  // `number`: the value of the header of that name; empty: none.
  void Send(uint32_t server, const PeerCallOptions& options, const std::string& number,
            const grpc::ByteBuffer& request, Done done);
  void SendNumbered(uint32_t server, const PeerCallOptions& options, const std::string& number,
                    const grpc::ByteBuffer& request, Done done);
  // Converts `status` of a call with a number: a server that refuses the number is a new process.
  absl::Status AfterNumbered(uint32_t server, const absl::Status& status);
  void Finish(UnderWay* call);

  const PeerLinkConfig& config_;
  grpc::CompletionQueue* queue_;    // constant after construction
  std::map<uint32_t, Peer> peers_;  // constant after construction

  mutable Mutex mu_;
  CondVar changed_;
  std::set<UnderWay*> calls_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Null if the caller's queue is used. Last: the thread uses all of the above.
  std::unique_ptr<grpc::CompletionQueue> own_queue_;
  std::unique_ptr<Executor> poller_;
};

}  // namespace ballast::server
