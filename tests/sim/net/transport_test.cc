// The simulator's transport keeps the conformance of links, so that its results for a session hold
// over gRPC too.
#include "tests/sim/net/transport.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/cpp/transport/link_conformance.h"

namespace ballast::sim {
namespace {

Swarm OneServer() {
  Swarm swarm;
  swarm.pace.network = kMillisecond;
  return swarm;
}

// The server, played by the test.
class SimPeer final : public client::LinkPeer, public StreamServer, public StreamServerEnd {
 public:
  SimPeer(World* world, Network* network) : world_(world), network_(network) {}

  std::string address() const override { return Network::Address(0); }
  void Send(const std::string& message) override {
    network_->SendDown(newest_, Payload::FromString(message));
  }
  void End(const absl::Status& status) override { network_->CloseDown(newest_, status); }
  std::vector<std::string> received() override { return received_; }
  int half_closes() override { return half_closes_; }
  void AnswerCalls(absl::StatusOr<std::string> answer) override { answer_ = std::move(answer); }
  void Stop() override {
    listens_ = false;
    world_->EndLife(network_->ServerNode(0));
    network_->EndProcess(0, /*announced=*/true);
  }
  void Restart() override { listens_ = true; }

  bool Serves() const override { return listens_; }
  void OnOpen(const StreamPtr& stream) override {
    newest_ = stream;
    stream->server_end = this;
  }
  void OnUp(const Payload& message) override { received_.push_back(message.ToString()); }
  void OnUpEnded() override { ++half_closes_; }
  void OnUpClosed() override {}
  void OnCall(const char*, const Payload&, UnaryDone done) override {
    if (!answer_.has_value()) return;
    answer_->ok() ? done(Payload::FromString(**answer_)) : done(answer_->status());
  }
  void OnSnapshot(const server::SnapshotCall&, const std::shared_ptr<server::CapturedRound>&,
                  const std::function<void(absl::StatusOr<uint64_t>)>&) override {}

 private:
  World* const world_;
  Network* const network_;
  bool listens_ = true;
  StreamPtr newest_;
  std::vector<std::string> received_;
  std::optional<absl::StatusOr<std::string>> answer_;
  int half_closes_ = 0;
};

class SimBench final : public client::LinkBench {
 public:
  SimBench() { network_.Add(&peer_); }

  Mutex* mu() override { return &mu_; }
  client::Transport* transport() override { return &transport_; }
  client::LinkPeer* peer() override { return &peer_; }
  bool RunUntil(const std::function<bool()>& done) override {
    MutexLock lock(&mu_);
    return world_.RunUntil(done);
  }

 private:
  Mutex mu_;
  const Swarm swarm_ = OneServer();
  World world_{/*seed=*/1, swarm_.shape.servers + swarm_.processes_max(), /*trace=*/false};
  Network network_{&world_, &swarm_};
  SimPeer peer_{&world_, &network_};
  SimTransport transport_{{.world = &world_, .swarm = &swarm_, .network = &network_},
                          /*process=*/0,
                          /*slot=*/0};
};

}  // namespace
}  // namespace ballast::sim

namespace ballast::client {
namespace {

INSTANTIATE_TEST_SUITE_P(Simulator, LinkConformance,
                         ::testing::Values(MakeLinkBench::Of<sim::SimBench>()),
                         [](const auto&) { return std::string("Simulator"); });

}  // namespace
}  // namespace ballast::client
