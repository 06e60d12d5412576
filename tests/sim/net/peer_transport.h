// SimPeerTransport: the calls of one server process to the others over the simulated network. A
// connection that is silent for kCallTimeout is broken, as gRPC's keepalive would find: a message
// was lost, or the other process has ended.
// Comes from: SimProcess. Goes to: Network::Ask. Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/stream/peer_transport.h"
#include "tests/sim/net/network.h"

namespace ballast::sim {

class SimPeerTransport final : public server::PeerTransport {
 public:
  // Of the present process of `node`.
  SimPeerTransport(World* world, Network* network, NodeId node)
      : world_(world), network_(network), node_(node), life_(world->Life(node)) {}

  void Call(const std::string& address, const server::PeerCallOptions& options,
            const Payload& request, Done done) override;
  // Once the process has ended, no `done` runs.
  void Stop() override;

 private:
  struct UnderWay;
  using CallPtr = std::shared_ptr<UnderWay>;

  Tick Left(const CallPtr& call) const;
  void Send(const CallPtr& call);
  // The network has no answer; it may not have found a process either.
  void OnFailed(const CallPtr& call, const absl::Status& status);
  // From time to time looks whether the server still works on this attempt.
  void AwaitSilence(const CallPtr& call, uint32_t attempt);
  void Finish(const CallPtr& call, const absl::StatusOr<Payload>& answer);

  World* const world_;
  Network* const network_;
  const NodeId node_;
  const uint64_t life_;
  bool stopped_ = false;
  std::vector<CallPtr> calls_;
};

}  // namespace ballast::sim
