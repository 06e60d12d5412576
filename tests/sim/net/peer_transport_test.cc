// The calls between simulated servers keep the conformance of transports, so that results for
// PeerClient hold over gRPC too.
#include "tests/sim/net/peer_transport.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/stream/peer_transport_conformance.h"
#include "tests/sim/net/server_unary.h"

namespace ballast::sim {
namespace {

// A machine whose processes have one method.
class OneMethodServer final : public StreamServer {
 public:
  OneMethodServer(World* world, NodeId node, server::UnaryCall::Handler handler)
      : world_(world), node_(node), factory_(server::UnaryCall::Factory(std::move(handler))) {}
  ~OneMethodServer() override { End(); }

  void End() {
    world_->EndLife(node_);
    runs_ = false;
    for (const std::weak_ptr<SimUnary>& weak : std::exchange(calls_, {})) {
      if (const auto call = weak.lock()) call->Drop();
    }
  }
  void Start() { runs_ = true; }

  bool Serves() const override { return runs_; }
  void OnOpen(const StreamPtr&) override {}
  void OnCall(const char* method, const Payload& request, UnaryDone answer) override {
    if (std::string(method) != method::kPeerRestoreJob) {
      return answer(absl::UnimplementedError("unknown method"));
    }
    const auto call = std::make_shared<SimUnary>(world_, node_, method, std::move(answer));
    calls_.push_back(call);
    call->Begin(factory_, request);
  }

 private:
  World* const world_;
  const NodeId node_;
  const server::StreamFactory factory_;
  bool runs_ = true;
  std::vector<std::weak_ptr<SimUnary>> calls_;
};

Swarm TwoServers() {
  Swarm swarm;
  swarm.shape.servers = 2;
  swarm.pace.network = kMillisecond;
  return swarm;
}

class SimPeerBench final : public server::PeerBench {
 public:
  explicit SimPeerBench(server::UnaryCall::Handler handler)
      : server_(&world_, /*node=*/1, std::move(handler)) {
    network_.Add(nullptr);
    network_.Add(&server_);
  }

  std::string address() const override { return Network::Address(1); }
  server::PeerTransport* transport() override { return &transport_; }
  void End() override { server_.End(); }
  void Start() override { server_.Start(); }
  bool RunUntil(const std::function<bool()>& done) override { return world_.RunUntil(done); }
  Tick now() const { return world_.now(); }

 private:
  const Swarm swarm_ = TwoServers();
  World world_{/*seed=*/1, swarm_.shape.servers + swarm_.processes_max(), /*trace=*/false};
  Network network_{&world_, &swarm_};
  OneMethodServer server_;
  SimPeerTransport transport_{&world_, &network_, /*node=*/0};
};

TEST(SimPeerTransportTest, ACallGoesOnForAsLongAsTheServerWorksOnIt) {
  std::shared_ptr<server::UnaryCall> call;
  SimPeerBench bench([&](auto arrived, const Payload&) { call = std::move(arrived); });
  absl::Status told = absl::UnknownError("no answer yet");
  const server::PeerCallOptions options{method::kPeerRestoreJob, std::chrono::hours(24), false, ""};
  bench.transport()->Call(bench.address(), options, Payload(),
                          [&](const auto& answer) { told = answer.status(); });
  ASSERT_TRUE(bench.RunUntil([&] { return bench.now() > kHour; }));
  EXPECT_TRUE(absl::IsUnknown(told)) << told;
  call->Reply(v1::PeerRestored());
  ASSERT_TRUE(bench.RunUntil([&] { return !absl::IsUnknown(told); }));
  EXPECT_EQ(told, absl::OkStatus());
}

}  // namespace
}  // namespace ballast::sim

namespace ballast::server {
namespace {

INSTANTIATE_TEST_SUITE_P(Simulator, PeerTransportConformance,
                         ::testing::Values(MakePeerBench::Of<sim::SimPeerBench>()),
                         [](const auto&) { return std::string("Simulator"); });

}  // namespace
}  // namespace ballast::server
